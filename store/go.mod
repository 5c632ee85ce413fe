module meshlog.dev/store

go 1.26

require (
	google.golang.org/protobuf v1.36.12
	meshlog.dev/proto v0.0.0
)

replace meshlog.dev/proto => ../proto
