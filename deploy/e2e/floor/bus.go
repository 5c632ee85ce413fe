package floor

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// payload is about the size of a route configuration with its envelope.
const payload = 1 << 10

// Measure sends n changes, one after the other, along the path that a change
// takes through meshlog, without processing them: published to one stream and
// synced, read by a consumer, published to a second stream and synced,
// republished to a core subscription. The key is the administrator's. It returns how long each took.
func Measure(ctx context.Context, url string, key nats.Option, n int) ([]time.Duration, error) {
	nc, err := nats.Connect(url, key)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	log, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "FLOOR_LOG", Subjects: []string{"floor.log"}})
	if err != nil {
		return nil, fmt.Errorf("create the first stream: %w", err)
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name: "FLOOR_CHAIN", Subjects: []string{"floor.chain"},
		RePublish: &jetstream.RePublish{Source: "floor.chain", Destination: "floor.live"},
	})
	if err != nil {
		return nil, fmt.Errorf("create the second stream: %w", err)
	}
	reader, err := log.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
	if err != nil {
		return nil, fmt.Errorf("create the consumer: %w", err)
	}
	records, err := reader.Messages()
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	defer records.Stop()
	live, err := nc.SubscribeSync("floor.live")
	if err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}

	took := make([]time.Duration, 0, n)
	body := make([]byte, payload)
	for range n {
		start := time.Now()
		if _, err := js.Publish(ctx, "floor.log", body); err != nil {
			return nil, fmt.Errorf("publish to the first stream: %w", err)
		}
		if _, err := records.Next(jetstream.NextContext(ctx)); err != nil {
			return nil, fmt.Errorf("read the first stream: %w", err)
		}
		if _, err := js.Publish(ctx, "floor.chain", body); err != nil {
			return nil, fmt.Errorf("publish to the second stream: %w", err)
		}
		if _, err := live.NextMsgWithContext(ctx); err != nil {
			return nil, fmt.Errorf("receive: %w", err)
		}
		took = append(took, time.Since(start))
	}
	return took, nil
}
