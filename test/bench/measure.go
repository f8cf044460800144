package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// result is what was found for one case. Costs of a volume include its creation and its deletion unless they say
// otherwise.
type result struct {
	Over    dimension `json:"over"`
	Size    int       `json:"size"`
	Volumes int       `json:"volumes"`

	VolumesPerSecond  float64 `json:"volumesPerSecond"`   // from the first claim until the last PersistentVolume
	DeletionsPerSec   float64 `json:"deletionsPerSecond"` // from the first deletion until the last PersistentVolume is gone
	SavedP50          float64 `json:"savedP50Milliseconds"`
	SavedP99          float64 `json:"savedP99Milliseconds"` // from sending the claim until its PersistentVolume is seen
	StartCPU          float64 `json:"startCPUMilliseconds"`
	CreateCPU         float64 `json:"createCPUMilliseconds"` // a volume
	DeleteCPU         float64 `json:"deleteCPUMilliseconds"` // a volume
	SyncedBytes       int64   `json:"syncedBytes"`           // resident after the caches are in sync
	SyncedAnonymous   int64   `json:"syncedAnonymousBytes"`  // the part of it that is not the program's file
	PeakBytes         int64   `json:"peakBytes"`
	EndBytes          int64   `json:"endBytes"`
	RequestsPerVolume float64 `json:"requestsPerVolume"` // without watches
	BytesPerVolume    float64 `json:"bytesPerVolume"`    // bodies in both directions, watches too
	Requests          []line  `json:"requests"`
}

// line is one kind of request, for one volume.
type line struct {
	operation

	Requests float64 `json:"requests"`
	Sent     float64 `json:"sentBytes"`
	Received float64 `json:"receivedBytes"`
}

func claimName(i int) string { return fmt.Sprintf("claim-%d", i) }

// measure makes n volumes and deletes them again.
func (s *subject) measure(ctx context.Context, w *world, n int) (result, error) {
	r := result{Volumes: n}
	if err := s.ready(ctx); err != nil {
		return result{}, err
	}
	begin, err := s.quiet(ctx, w.proxy)
	if err != nil {
		return result{}, err
	}
	r.StartCPU = milliseconds(begin.cpu)
	if r.SyncedBytes, err = s.memory("VmRSS"); err != nil {
		return result{}, err
	}
	if r.SyncedAnonymous, err = s.memory("RssAnon"); err != nil {
		return result{}, err
	}
	watcher, err := watchVolumes(ctx, w.cluster.Client())
	if err != nil {
		return result{}, err
	}
	defer watcher.stop()
	if err := r.create(ctx, w, watcher); err != nil {
		return result{}, err
	}
	middle, err := s.quiet(ctx, w.proxy)
	if err != nil {
		return result{}, err
	}
	if err := r.remove(ctx, w, watcher); err != nil {
		return result{}, err
	}
	end, err := s.quiet(ctx, w.proxy)
	if err != nil {
		return result{}, err
	}
	r.CreateCPU, r.DeleteCPU = milliseconds(middle.cpu-begin.cpu)/float64(n), milliseconds(end.cpu-middle.cpu)/float64(n)
	r.countTraffic(since(begin.traffic, end.traffic))
	if r.PeakBytes, err = s.memory("VmHWM"); err != nil {
		return result{}, err
	}
	r.EndBytes, err = s.memory("VmRSS")
	return r, err
}

// create makes the claims and waits until all are bound.
func (r *result) create(ctx context.Context, w *world, watcher *watcher) error {
	sent := make([]time.Time, r.Volumes)
	claims := w.cluster.Client().CoreV1().PersistentVolumeClaims(namespace)
	begin := time.Now()
	err := parallel(r.Volumes, func(i int) error {
		sent[i] = time.Now()
		_, err := claims.Create(ctx, claim(claimName(i), className), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	if err := watcher.wait(ctx, func(v volumes) bool { return len(v.saved) == r.Volumes }); err != nil {
		return fmt.Errorf("wait for %d PersistentVolumes: %w", r.Volumes, err)
	}
	saved := watcher.now().saved
	took := make([]time.Duration, r.Volumes)
	last := begin
	for i := range took {
		at := saved[claimName(i)]
		took[i] = at.Sub(sent[i])
		if at.After(last) {
			last = at
		}
	}
	r.VolumesPerSecond = float64(r.Volumes) / last.Sub(begin).Seconds()
	r.SavedP50, r.SavedP99 = milliseconds(quantile(took, 0.5)), milliseconds(quantile(took, 0.99))
	if err := watcher.wait(ctx, func(v volumes) bool { return v.bound == r.Volumes }); err != nil {
		return fmt.Errorf("wait until %d PersistentVolumes are bound: %w", r.Volumes, err)
	}
	return nil
}

// remove deletes the claims and waits until all PersistentVolumes are gone.
func (r *result) remove(ctx context.Context, w *world, watcher *watcher) error {
	claims := w.cluster.Client().CoreV1().PersistentVolumeClaims(namespace)
	begin := time.Now()
	err := parallel(r.Volumes, func(i int) error { return claims.Delete(ctx, claimName(i), metav1.DeleteOptions{}) })
	if err != nil {
		return err
	}
	if err := watcher.wait(ctx, func(v volumes) bool { return len(v.saved) == 0 }); err != nil {
		return fmt.Errorf("wait until %d PersistentVolumes are gone: %w", r.Volumes, err)
	}
	r.DeletionsPerSec = float64(r.Volumes) / time.Since(begin).Seconds()
	return nil
}

func (r *result) countTraffic(traffic map[operation]amount) {
	n := float64(r.Volumes)
	for op, a := range traffic {
		r.Requests = append(r.Requests, line{
			operation: op, Requests: float64(a.Requests) / n, Sent: float64(a.Sent) / n, Received: float64(a.Received) / n,
		})
		if op.Verb != "watch" {
			r.RequestsPerVolume += float64(a.Requests) / n
		}
		r.BytesPerVolume += float64(a.Sent+a.Received) / n
	}
	slices.SortFunc(r.Requests, func(a, b line) int { return compareOperations(a.operation, b.operation) })
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// quantile returns the smallest value that at least the share q of all values does not exceed; 0 of none.
func quantile(values []time.Duration, q float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}
