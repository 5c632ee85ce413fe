module meshlog.dev/store

go 1.26

require (
	github.com/google/go-cmp v0.7.0
	google.golang.org/protobuf v1.36.12
	meshlog.dev/proto v0.0.0
)

replace meshlog.dev/proto => ../proto
