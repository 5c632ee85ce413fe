package past

import (
	"context"

	"meshlog.dev/proto/ident"
)

// OfLong is Of for a log that counts as long, whatever its length.
func OfLong(ctx context.Context, p *Past, keys []ident.Key) ([]*KeyEvent, error) {
	return of(ctx, p, keys, nil, 0, 0)
}
