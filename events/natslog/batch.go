package natslog

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"

	"meshlog.dev/proto/jsapi"
)

// Headers of an atomic batch, as ADR-50 of NATS names them.
const (
	batchIDHeader     = "Nats-Batch-Id"
	batchSeqHeader    = "Nats-Batch-Sequence"
	batchCommitHeader = "Nats-Batch-Commit"
)

// publishBatch publishes msgs as one atomic batch and returns the sequence of
// the last one. It waits for the server's answer to the first message, which
// opens the batch, and to the last, which commits it. A batch that is not
// committed leaves nothing on the stream: the server discards it after 10 s.
func (l *Log) publishBatch(ctx context.Context, msgs []*nats.Msg) (uint64, error) {
	id, last := rand.Text(), len(msgs)-1
	for i, m := range msgs[:last] {
		m.Header.Set(batchIDHeader, id)
		m.Header.Set(batchSeqHeader, strconv.Itoa(i+1))
		if i > 0 {
			if err := l.nc.PublishMsg(m); err != nil {
				return 0, fmt.Errorf("message %d of the batch: %w", i+1, err)
			}
			continue
		}
		if _, err := l.batchAnswer(ctx, m); err != nil {
			return 0, fmt.Errorf("open the batch: %w", err)
		}
	}
	m := msgs[last]
	m.Header.Set(batchIDHeader, id)
	m.Header.Set(batchSeqHeader, strconv.Itoa(len(msgs)))
	m.Header.Set(batchCommitHeader, "1")
	ack, err := l.batchAnswer(ctx, m)
	if err == nil && (ack.Batch != id || ack.Count != len(msgs) || ack.Seq == 0) {
		err = errors.New("the server did not acknowledge the batch as a whole")
	}
	if err != nil {
		return 0, fmt.Errorf("commit the batch: %w", err)
	}
	return ack.Seq, nil
}

// batchAck is the server's answer to the message that commits a batch.
type batchAck struct {
	jsapi.Response
	Seq   uint64 `json:"seq"`
	Batch string `json:"batch"`
	Count int    `json:"count"`
}

// batchAnswer publishes m and returns the server's answer, which is empty for
// the message that opens a batch.
func (l *Log) batchAnswer(ctx context.Context, m *nats.Msg) (ack batchAck, err error) {
	reply, err := l.nc.RequestMsgWithContext(ctx, m)
	if err != nil || len(reply.Data) == 0 {
		return ack, err
	}
	if err := json.Unmarshal(reply.Data, &ack); err != nil {
		return ack, fmt.Errorf("read the server's answer: %w", err)
	}
	if ack.Error != nil {
		return ack, ack.Error
	}
	return ack, nil
}
