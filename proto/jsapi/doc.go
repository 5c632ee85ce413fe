// Package jsapi holds what the log, the version chain and the processes share
// when they talk to NATS JetStream: the subjects of its API, the codes of its
// errors, requests that fail early if the server denies them, reads that the
// stream's leader answers, and the checks of a stream's settings.
//
// All functions are safe for concurrent use.
package jsapi

import (
	"errors"

	"github.com/nats-io/nats.go/jetstream"
)

// AccountInfo is the subject of the request that JetStream's leader answers.
const AccountInfo = "$JS.API.INFO"

// Subjects of requests about one stream. The stream's name follows, and for
// some requests a consumer or a subject after it.
const (
	StreamInfo     = "$JS.API.STREAM.INFO."
	StreamCreate   = "$JS.API.STREAM.CREATE."
	StreamUpdate   = "$JS.API.STREAM.UPDATE."
	StreamPurge    = "$JS.API.STREAM.PURGE."
	MessageGet     = "$JS.API.STREAM.MSG.GET." // the stream's leader answers
	DirectGet      = "$JS.API.DIRECT.GET."     // any replica answers; it may lag
	ConsumerCreate = "$JS.API.CONSUMER.CREATE."
	ConsumerDelete = "$JS.API.CONSUMER.DELETE."
	ConsumerReset  = "$JS.API.CONSUMER.RESET."
	ConsumerNext   = "$JS.API.CONSUMER.MSG.NEXT."
)

// Codes of the server's errors that the client library has no name for.
const (
	AccountResourcesExceeded jetstream.ErrorCode = 10002
	NoSuitablePeers          jetstream.ErrorCode = 10005
	ClusterNotAvailable      jetstream.ErrorCode = 10008
	InsufficientResources    jetstream.ErrorCode = 10023
	StorageResourcesExceeded jetstream.ErrorCode = 10047
	StreamStoreFailed        jetstream.ErrorCode = 10077
	BatchTooLarge            jetstream.ErrorCode = 10199
	BatchHasDuplicate        jetstream.ErrorCode = 10201
)

// Code returns the code of a server's error, 0 if err is none.
func Code(err error) jetstream.ErrorCode {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.ErrorCode
	}
	return 0
}

// IsConflict reports whether the server refused a message because its expected
// sequence is not the last one. A replicated stream has a second code for that,
// for a message that another publish overtook on its way.
func IsConflict(err error) bool {
	code := Code(err)
	return code == jetstream.JSErrCodeStreamWrongLastSequence || code == jetstream.JSErrCodeStreamWrongLastSequenceConstant
}
