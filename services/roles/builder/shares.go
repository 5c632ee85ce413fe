package builder

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/events/natslog"
	"meshlog.dev/services/builder/shares"
)

const (
	// sizeEvery is how often the size of the log is read, and thus the time within
	// which a builder names a shard that has passed half of it.
	sizeEvery = 5 * time.Second
	// countAgain is the pause before the log is counted again after an error.
	countAgain = time.Second
)

// shareCount counts what the records of each shard take of the log.
type shareCount struct {
	log    *natslog.Log
	shares *shares.Shares
	logger *slog.Logger
	said   string
}

// run counts until ctx is done: all records of the log, then each new one. If the
// connection was renewed, the log may be another one, and run counts all again.
func (c *shareCount) run(ctx context.Context) error {
	for {
		c.shares.Reset()
		if bounds, err := c.look(ctx); err == nil {
			for size, err := range c.log.Sizes(ctx, max(bounds.First, 1)-1) {
				if err != nil {
					c.logger.Debug("counting the log again", "reason", err)
					break
				}
				c.shares.Add(size.Seq, size.Shard, size.Bytes)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(countAgain):
		}
	}
}

// watch reads the size of the log, and logs which shards take half of it.
func (c *shareCount) watch(ctx context.Context) error {
	return every(ctx, sizeEvery, func(ctx context.Context) {
		if _, err := c.look(ctx); err == nil {
			c.tell()
		}
	})
}

func (c *shareCount) look(ctx context.Context) (events.Bounds, error) {
	bytes, most, bounds, err := c.log.Usage(ctx)
	if err != nil {
		return bounds, err
	}
	c.shares.Log(bytes, most, bounds.First, bounds.Last)
	return bounds, nil
}

// tell logs which shards take half of the log, when they change.
func (c *shareCount) tell() {
	var names []string
	for _, w := range c.shares.Warnings() {
		name, _, _ := strings.Cut(w, " ")
		names = append(names, name)
	}
	if all := strings.Join(names, ", "); all != c.said {
		if c.said = all; all != "" {
			c.logger.Error("shards take half of the log: when it is full, no process can write", "shards", all, "advice", "see `meshlog status`")
		}
	}
}
