package cluster

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// raise makes most at least n.
func raise(most *atomic.Int64, n int64) {
	for seen := most.Load(); n > seen && !most.CompareAndSwap(seen, n); seen = most.Load() {
	}
}

// No more writes than maxWrites are under way, all of them end, and reads wait for none.
func TestWritesAreBoundedAndReadsAreNot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var now, most, done atomic.Int64
		bound := boundTo(maxWrites)(roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodGet {
				return &http.Response{Request: r}, nil
			}
			raise(&most, now.Add(1))
			time.Sleep(time.Second)
			now.Add(-1)
			done.Add(1)
			return &http.Response{Request: r}, nil
		}))
		send := func(ctx context.Context, method string) error {
			r, err := http.NewRequestWithContext(ctx, method, "https://api.test/", nil)
			if err != nil {
				return err
			}
			_, err = bound.RoundTrip(r) //nolint:bodyclose // there is none
			return err
		}
		const writes = 2*maxWrites + 1
		for i := range writes {
			method := []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}[i%4]
			go func() {
				if err := send(t.Context(), method); err != nil {
					t.Errorf("%s: %v", method, err)
				}
			}()
		}
		synctest.Wait()
		if got := now.Load(); got != maxWrites {
			t.Errorf("%d writes are under way, want %d", got, maxWrites)
		}
		begin := time.Now()
		if err := send(t.Context(), http.MethodGet); err != nil || time.Since(begin) != 0 {
			t.Errorf("a read took %s and ended with %v, want no wait", time.Since(begin), err)
		}
		gone := errors.New("nobody waits for it")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(gone)
		if err := send(ctx, http.MethodPost); !errors.Is(err, gone) {
			t.Errorf("a write that nobody waits for: %v, want its cause", err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if done.Load() != writes || most.Load() != maxWrites {
			t.Errorf("%d writes ended, %d at most at a time, want %d and %d", done.Load(), most.Load(), writes, maxWrites)
		}
	})
}

// An API server with room for a few writes refuses the rest. Few are refused for nothing, all are taken in the end, and
// when there is room again all of it is used.
func TestWritesGiveWayToABusyServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const writes, few = 500, 4
		var now, most, room, refused atomic.Int64
		bound := boundTo(maxWrites)(roundTripper(func(r *http.Request) (*http.Response, error) {
			defer now.Add(-1)
			if now.Add(1) > room.Load() {
				refused.Add(1)
				return &http.Response{StatusCode: http.StatusTooManyRequests, Request: r}, nil
			}
			raise(&most, now.Load())
			time.Sleep(100 * time.Millisecond)
			return &http.Response{StatusCode: http.StatusOK, Request: r}, nil
		}))
		send := func() {
			var all sync.WaitGroup
			for range writes {
				all.Go(func() {
					for status := 0; status != http.StatusOK; time.Sleep(time.Second) {
						r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.test/", nil)
						if err != nil {
							t.Error(err)
							return
						}
						response, err := bound.RoundTrip(r) //nolint:bodyclose // there is none
						if err != nil {
							t.Error(err)
							return
						}
						status = response.StatusCode
					}
				})
			}
			all.Wait()
		}
		room.Store(few)
		send()
		if got := refused.Load(); got == 0 || got > writes {
			t.Errorf("%d writes were refused, want some, and less than one for each of the %d", got, writes)
		}
		room.Store(maxWrites)
		most.Store(0)
		refused.Store(0)
		for range 10 {
			send()
		}
		if most.Load() != maxWrites || refused.Load() != 0 {
			t.Errorf("%d writes at a time and %d refused, want %d and none", most.Load(), refused.Load(), maxWrites)
		}
	})
}

// A crowd of writes that are refused together halves the limit once, not once for each of them.
func TestACrowdHalvesTheLimitOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bound, ok := boundTo(maxWrites)(roundTripper(func(r *http.Request) (*http.Response, error) {
			time.Sleep(time.Second)
			return &http.Response{StatusCode: http.StatusTooManyRequests, Request: r}, nil
		})).(*boundWrites)
		if !ok {
			t.Fatal("another type")
		}
		for crowd, want := maxWrites, maxWrites/2; crowd > 1; crowd, want = want, want/2 {
			var all sync.WaitGroup
			for range crowd {
				all.Go(func() {
					r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.test/", nil)
					if err == nil {
						_, err = bound.RoundTrip(r) //nolint:bodyclose // there is none
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			all.Wait()
			if bound.limit != want {
				t.Fatalf("after a crowd of %d the limit is %d, want %d", crowd, bound.limit, want)
			}
		}
	})
}
