// Package fold turns the records of the log into content: the last good
// values of all keys and the overlays over them. RULES.md lists its rules.
//
// A fold is a function of the records up to a position and of the base that the
// position's segment names. When, in which batches and from which process the
// records come makes no difference. The package is pure; one goroutine uses a
// Fold.
package fold
