package process

import (
	"context"
	"fmt"
	"net/http"
)

// maxInFlight is how many requests for the metrics, and for each profile, are served at the same time. A scrape holds
// all samples in memory until the client has read them, a profile more than that. Two Prometheus servers with their
// retries need no more.
const maxInFlight = 5

// limited serves at most maxInFlight requests with next at the same time and answers others with 503. A client that
// does not read its answer keeps its place until the server's write timeout. The health pages have no limit: they
// answer from memory, and nothing that other pages do delays them.
func limited(path string, next http.Handler) http.Handler {
	places := make(chan struct{}, maxInFlight)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			next.ServeHTTP(w, r)
		default:
			w.Header().Set("Connection", "close")
			answer(w, http.StatusServiceUnavailable, fmt.Sprintf("%s serves %d requests at the same time, try again later\n", path, maxInFlight))
		}
	})
}

// bounded ends the context of a request after profileTimeout: net/http/pprof would take as long as the query asks for.
func bounded(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), profileTimeout)
		defer cancel()
		next(w, r.WithContext(ctx))
	})
}
