package natsfeed

import "meshlog.dev/proto/jsapi"

// Subjects of the object store: the metadata of an object, and its chunks.
const (
	blobMeta   = "$O." + BlobBucket + ".M."
	blobChunks = "$O." + BlobBucket + ".C."
)

// ReadPermissions returns the subjects that a client publishes to when it opens
// and reads a chain. It also listens to its inbox and to LiveSubject. All meshes
// share the streams: a client that may read one chain may read all chains of
// its account.
func ReadPermissions() []string {
	return []string{
		jsapi.StreamInfo + Stream, jsapi.MessageGet + Stream, jsapi.DirectGet + Stream,
		jsapi.StreamInfo + blobStream, jsapi.DirectGet + blobStream, jsapi.DirectGet + blobStream + "." + blobMeta + "*",
	}
}

// PublishPermissions returns the subjects to write a chain and its blobs, in
// addition to ReadPermissions.
func PublishPermissions(o Options) []string {
	return []string{o.subject(), blobMeta + "*", blobChunks + "*", jsapi.StreamPurge + blobStream}
}

// CreatePermissions returns the subjects for EnsureStreams.
func CreatePermissions() []string {
	return []string{jsapi.StreamInfo + Stream, jsapi.StreamCreate + Stream, jsapi.StreamInfo + blobStream, jsapi.StreamCreate + blobStream}
}
