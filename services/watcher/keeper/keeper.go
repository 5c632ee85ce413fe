// Package keeper decides what a watcher gives to a frontend that asks for private keys
// (KEY-5).
//
// A request names fields of a credential by their HMACs. The key of the HMACs is not on
// the log, so a frontend has them from the log: a watcher that finds the same HMACs at its
// source gives what it has published, and nothing else. This holds for a standby too,
// which has published nothing itself. The keeper reads the source for each request and
// keeps nothing.
package keeper

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	keyv1 "meshlog.dev/proto/meshlog/key/v1"
	"meshlog.dev/services/mesh/credential"
)

// readWithin bounds a read of the source: the frontend waits 5 s for its answer.
const readWithin = 3 * time.Second

// Source reads a credential where the watcher has it from. The caller wipes its data.
// The error is ErrGone if there is none, and wraps ErrRefused if the watcher must not use
// it; after any other the frontend asks again. No error repeats a part of the content.
type Source interface {
	Credential(ctx context.Context, namespace, name string) (credential.Source, error)
}

// Errors of a Source.
var (
	ErrGone    = errors.New("the source has no such credential")
	ErrRefused = errors.New("the watcher must not use it")
)

// Keeper answers for the credentials of a Source.
type Keeper struct {
	Source  Source
	Options credential.Options // those of the references on the log
}

// Answer returns the fields of a credential whose HMACs are sums, or why not. The caller
// wipes the fields.
func (k Keeper) Answer(ctx context.Context, namespace, name string, sums map[string][]byte) (outcome keyv1.Outcome, fields map[string][]byte, reason string) {
	if len(k.Options.Key) == 0 {
		return keyv1.Outcome_OUTCOME_REFUSED, nil, "the watcher has no --secret-key-file, so it cannot tell which key is meant"
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	s, err := k.Source.Credential(ctx, namespace, name)
	defer func() { // also of a part that was read before an error
		for field, content := range s.Data {
			if _, given := fields[field]; !given {
				clear(content)
			}
		}
	}()
	switch {
	case errors.Is(err, ErrGone):
		return keyv1.Outcome_OUTCOME_GONE, nil, err.Error()
	case errors.Is(err, ErrRefused):
		return keyv1.Outcome_OUTCOME_REFUSED, nil, err.Error()
	case err != nil:
		return keyv1.Outcome_OUTCOME_BUSY, nil, err.Error()
	}
	s.Namespace, s.Name = namespace, name
	ref, err := credential.Reference(s, k.Options)
	switch {
	case err != nil: // it is not on the log: the last good value is
		return keyv1.Outcome_OUTCOME_CHANGED, nil, "the source has an invalid credential now"
	case ref == nil:
		return keyv1.Outcome_OUTCOME_GONE, nil, ErrGone.Error()
	}
	for _, field := range slices.Sorted(maps.Keys(sums)) {
		if !hmac.Equal(ref.GetFields()[field], sums[field]) {
			return keyv1.Outcome_OUTCOME_CHANGED, nil, fmt.Sprintf("the source has another %q than the version names", field)
		}
	}
	fields = map[string][]byte{}
	for field := range sums {
		fields[field] = s.Data[field]
	}
	return keyv1.Outcome_OUTCOME_GIVEN, fields, ""
}
