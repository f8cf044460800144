package cluster

import (
	"context"
	"net/http"
	"sync"
)

// maxWrites is how many writes of the core client may be under way at once.
// The API server takes 100 requests at a time on a connection, which the clients share. Whatever finds no room opens a
// connection of its own, with a handshake that costs more than the request, and a hundred workers do that at the same
// moment. The rest is left to reads, watches and events.
const maxWrites = 64

// boundWrites lets at most so many writes through at a time, and fewer when the API server refuses some with
// TooManyRequests, as API Priority and Fairness does (KEP-1040): half as many after each refusal, and one more for each
// round of writes that it takes. What is refused is sent again by client-go, when the server has said. Reads and watches
// pass. It may be used concurrently.
type boundWrites struct {
	next  http.RoundTripper
	most  int
	slots chan struct{} // holds a token for each write that may begin

	mu      sync.Mutex
	limit   int // how many tokens there should be, 1 to most
	surplus int // how many there are beyond that, all of them with writes under way
	halved  int // how often the limit was halved
	taken   int // writes that the server took since the limit changed
}

// boundTo makes the wrapper of a transport that lets that many writes through at a time.
func boundTo(most int) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		b := &boundWrites{next: next, most: most, slots: make(chan struct{}, most), limit: most}
		for range most {
			b.slots <- struct{}{}
		}
		return b
	}
}

// RoundTrip waits for its turn, or for the end of the request's context.
func (b *boundWrites) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		return b.next.RoundTrip(r)
	}
	select {
	case <-b.slots:
	case <-r.Context().Done():
		return nil, context.Cause(r.Context())
	}
	b.mu.Lock()
	halved := b.halved
	b.mu.Unlock()
	response, err := b.next.RoundTrip(r)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.learn(halved, response.StatusCode == http.StatusTooManyRequests)
	}
	b.give()
	return response, err
}

// learn draws its conclusion from the answer to a write that began when the limit had been halved that often. One that
// began earlier tells of a crowd that is being thinned already.
func (b *boundWrites) learn(halved int, refused bool) {
	switch {
	case refused && halved == b.halved:
		less := b.limit / 2
		b.limit, b.surplus, b.taken = b.limit-less, b.surplus+less, 0
		b.halved++
	case !refused && b.limit < b.most:
		if b.taken++; b.taken >= b.limit {
			b.limit, b.taken = b.limit+1, 0
			b.give()
		}
	}
}

// give makes a token available, or drops one that is too many.
func (b *boundWrites) give() {
	if b.surplus > 0 {
		b.surplus--
		return
	}
	b.slots <- struct{}{} // There is room: there are never more than most.
}

// WrappedRoundTripper shows client-go what is inside.
func (b *boundWrites) WrappedRoundTripper() http.RoundTripper { return b.next }
