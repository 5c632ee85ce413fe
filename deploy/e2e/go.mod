module meshlog.dev/deploy/e2e

go 1.26
