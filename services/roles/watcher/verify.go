package watcher

import (
	"context"
	"io"

	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/dryrun"
)

// VerifyDirectory writes to w the problems that meshlog would report in the
// directory that --config names. It returns an error if one of them is an error.
func VerifyDirectory(ctx context.Context, dir string, w io.Writer) error {
	if process.CheckConfig(dir) != nil {
		return nil // CheckConfig has reported it
	}
	problems, err := dryrun.Directory(ctx, dir)
	if err != nil {
		return process.Invalid("config", "%w", err)
	}
	switch failed := dryrun.Print(w, problems); failed {
	case 0:
		return nil
	case 1:
		return process.Invalid("config", "1 error in its documents")
	default:
		return process.Invalid("config", "%d errors in its documents", failed)
	}
}
