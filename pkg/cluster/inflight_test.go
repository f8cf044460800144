package cluster

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// No more writes than maxWrites are under way, all of them end, and reads wait for none.
func TestWritesAreBoundedAndReadsAreNot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var now, most, done atomic.Int64
		bound := newBoundWrites(roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodGet {
				return &http.Response{Request: r}, nil
			}
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
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
