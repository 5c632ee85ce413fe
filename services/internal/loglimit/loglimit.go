// Package loglimit limits the log lines that other processes can cause, so that a
// client that misbehaves neither fills the log nor hides other lines in it.
package loglimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Logger logs each message a few times a second at most. The next line of a message
// has the number of lines that were left out since the one before, as left_out.
// Messages are texts of the program, so their number is bounded; what other
// processes choose belongs into attributes. It is safe for concurrent use.
type Logger struct {
	log       *slog.Logger
	perSecond int

	mu       sync.Mutex
	messages map[string]*message
}

// message is how often a message was logged lately.
type message struct {
	since   time.Time // the current second
	lines   int       // logged in it
	leftOut uint64    // not logged since the last line
}

// New returns a Logger that writes at most perSecond lines of each message a second
// to log.
func New(log *slog.Logger, perSecond int) *Logger {
	return &Logger{log: log, perSecond: perSecond, messages: map[string]*message{}}
}

// Info logs at level info.
func (l *Logger) Info(message string, args ...any) { l.Line(slog.LevelInfo, message, message, args...) }

// Warn logs at level warn.
func (l *Logger) Warn(message string, args ...any) { l.Line(slog.LevelWarn, message, message, args...) }

// Error logs at level error.
func (l *Logger) Error(message string, args ...any) {
	l.Line(slog.LevelError, message, message, args...)
}

// Debug logs without a limit: an operator who turns debug lines on wants all of them.
func (l *Logger) Debug(message string, args ...any) { l.log.Debug(message, args...) }

// Line logs a message that counts as the text kind, for messages that are not texts
// of the program.
func (l *Logger) Line(level slog.Level, kind, message string, args ...any) {
	if !l.log.Enabled(context.Background(), level) {
		return
	}
	leftOut, ok := l.take(kind)
	if !ok {
		return
	}
	if leftOut > 0 {
		args = append(args[:len(args):len(args)], "left_out", leftOut)
	}
	l.log.Log(context.Background(), level, message, args...)
}

// take reports whether a line may be logged, and how many were left out before it.
func (l *Logger) take(kind string) (leftOut uint64, ok bool) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.messages[kind]
	if m == nil {
		m = new(message)
		l.messages[kind] = m
	}
	if now.Sub(m.since) >= time.Second {
		m.since, m.lines = now, 0
	}
	if m.lines >= l.perSecond {
		m.leftOut++
		return 0, false
	}
	m.lines++
	leftOut, m.leftOut = m.leftOut, 0
	return leftOut, true
}
