package bus

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

// split returns a report in messages of at most that many bytes. Only verdicts may
// be many: they are in further messages, which repeat the rest of the report with
// its time, so that the jury knows them for one report. A verdict that is too large
// by itself loses what describes it, and keeps its counts.
func split(report proto.Message, most int) []proto.Message {
	whole, ok := report.(*reportv1.FrontendReport)
	if !ok || proto.Size(whole) <= most {
		return []proto.Message{report}
	}
	verdicts := whole.GetVerdicts()
	whole.Verdicts = nil
	head := proto.Size(whole)
	var parts []proto.Message
	for first := true; first || len(verdicts) > 0; first = false {
		part := proto.Clone(whole).(*reportv1.FrontendReport)
		for size := head; len(verdicts) > 0; verdicts = verdicts[1:] {
			v := verdicts[0]
			if proto.Size(v) > most-head-verdictHead {
				v.Message, v.Class, v.Rejectors = "(too long to report)", nil, nil
			}
			size += proto.Size(v) + verdictHead
			if size > most && len(part.Verdicts) > 0 {
				break
			}
			part.Verdicts = append(part.Verdicts, v)
		}
		parts = append(parts, part)
	}
	return parts
}

// verdictHead is the most that a verdict takes in a report besides itself.
const verdictHead = 8

// lost counts a report that could not be sent, and warns. While the bus is away
// reports cannot be sent: the connection says so, and the next report replaces
// this one.
func (r *Reporter) lost(err error) {
	if err == nil {
		return
	}
	if !r.fleet.nc.IsConnected() {
		r.fleet.log.Debug("report not published: the bus is away", "error", err)
		return
	}
	r.fleet.lost.Add(1)
	r.fleet.log.Warn("a report of this process is lost", "error", err)
}

// sendReport publishes the messages of a report.
func (r *Reporter) sendReport(report proto.Message, send func([]byte) error) error {
	for _, part := range split(report, maxPart) {
		b, err := proto.Marshal(part)
		if err == nil {
			err = send(b)
		}
		if err != nil {
			return fmt.Errorf("publish the report of %s: %w", r.name, err)
		}
	}
	return nil
}
