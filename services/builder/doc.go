// Package builder turns the log into versions: it folds records, waits for
// quiet, and publishes the position of its fold whenever the world there
// differs from the head of the version chain.
//
// Machine holds the state and does one step at a time; it has no goroutine, no
// clock and no select, so that a simulation can drive it. Builder is Machine
// with these: one goroutine owns the Machine, one select feeds it.
//
// Many builders may run. One holds the lease and publishes; the others fold as
// far as it has published, compare every root, and take over warm. The lease
// is for liveness only: each publish is fenced, so the chain never forks, and a
// version is a function of the log, so two leaders publish more versions but
// never different contents.
package builder
