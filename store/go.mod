module meshlog.dev/store

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/nats-io/nats.go v1.55.0
	go.etcd.io/bbolt v1.5.0
	golang.org/x/sync v0.24.0
	google.golang.org/protobuf v1.36.12
	meshlog.dev/deploy/testkit v0.0.0
	meshlog.dev/proto v0.0.0
	meshlog.dev/proto/jsapi v0.0.0
)

require (
	github.com/antithesishq/antithesis-sdk-go v0.8.0-default-no-op // indirect
	github.com/google/go-tpm v0.9.8 // indirect
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/minio/highwayhash v1.0.4 // indirect
	github.com/nats-io/jwt/v2 v2.8.2 // indirect
	github.com/nats-io/nats-server/v2 v2.15.2 // indirect
	github.com/nats-io/nkeys v0.4.16 // indirect
	github.com/nats-io/nuid v1.0.1 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/time v0.16.0 // indirect
)

replace (
	meshlog.dev/deploy/testkit => ../deploy/testkit
	meshlog.dev/proto => ../proto
	meshlog.dev/proto/jsapi => ../proto/jsapi
)
