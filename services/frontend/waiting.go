package frontend

import "fmt"

// payWaiting counts what waits in the stream's state for the memory that the address
// has for metadata; mu is held. After an error the stream ends.
func (c *conn) payWaiting() error {
	waiting := c.state.Waiting()
	if !c.share.address.addMetadata(waiting - c.waiting) {
		return fmt.Errorf("the requests of the proxies behind this address that wait for an answer, with their metadata, take more than %d KiB for each stream that the address may have: read the responses, let the proxies import less, or raise --streams-per-address",
			metadataShare>>10)
	}
	c.waiting = waiting
	return nil
}
