module meshlog.dev/services

go 1.26
