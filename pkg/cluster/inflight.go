package cluster

import (
	"context"
	"net/http"
)

// maxWrites is how many writes of the core client may be under way at once. The API server takes 100 requests at a
// time on a connection. Whatever finds no room opens a connection of its own, with a handshake that costs more than
// the request, and a hundred workers do that at the same moment. The rest is left to watches, events and markers.
const maxWrites = 64

// boundWrites lets at most maxWrites writes through at a time; reads and watches pass.
type boundWrites struct {
	next  http.RoundTripper
	slots chan struct{}
}

func newBoundWrites(next http.RoundTripper) http.RoundTripper {
	return &boundWrites{next: next, slots: make(chan struct{}, maxWrites)}
}

// RoundTrip waits for its turn, or for the end of the request's context.
func (b *boundWrites) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		return b.next.RoundTrip(r)
	}
	select {
	case b.slots <- struct{}{}:
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
	defer func() { <-b.slots }()
	return b.next.RoundTrip(r)
}

// WrappedRoundTripper shows client-go what is inside.
func (b *boundWrites) WrappedRoundTripper() http.RoundTripper { return b.next }
