module meshlog.dev/store

go 1.26

require (
	github.com/google/go-cmp v0.7.0
	go.etcd.io/bbolt v1.5.0
	google.golang.org/protobuf v1.36.12
	meshlog.dev/proto v0.0.0
)

require golang.org/x/sys v0.45.0 // indirect

replace meshlog.dev/proto => ../proto
