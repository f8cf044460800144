package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// volumes is the state of the PersistentVolumes.
type volumes struct {
	saved map[string]time.Time // name of the claim → when its PersistentVolume was first seen
	bound int
}

// watcher follows the PersistentVolumes from a moment at which there are none.
type watcher struct {
	watch   watch.Interface
	changed chan struct{} // holds a token when something has changed

	mu    sync.Mutex
	state volumes
	phase map[string]corev1.PersistentVolumePhase // name of the claim → phase
	err   error                                   // why the watch has ended
}

func watchVolumes(ctx context.Context, client kubernetes.Interface) (*watcher, error) {
	pvs := client.CoreV1().PersistentVolumes()
	list, err := pvs.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	if len(list.Items) > 0 {
		return nil, fmt.Errorf("%d PersistentVolumes are there before the first claim", len(list.Items))
	}
	events, err := pvs.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return nil, err
	}
	w := &watcher{
		watch: events, changed: make(chan struct{}, 1),
		state: volumes{saved: map[string]time.Time{}}, phase: map[string]corev1.PersistentVolumePhase{},
	}
	go w.run()
	return w, nil
}

func (w *watcher) stop() { w.watch.Stop() }

func (w *watcher) run() {
	for event := range w.watch.ResultChan() {
		w.see(event, time.Now())
	}
	w.mu.Lock()
	w.err = errors.New("the watch of PersistentVolumes has ended")
	w.mu.Unlock()
	w.notify()
}

func (w *watcher) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *watcher) see(event watch.Event, at time.Time) {
	pv, ok := event.Object.(*corev1.PersistentVolume)
	if !ok || pv.Spec.ClaimRef == nil {
		return
	}
	w.mu.Lock()
	name := pv.Spec.ClaimRef.Name
	if w.phase[name] == corev1.VolumeBound {
		w.state.bound--
	}
	if event.Type == watch.Deleted {
		delete(w.state.saved, name)
		delete(w.phase, name)
	} else {
		if _, known := w.state.saved[name]; !known {
			w.state.saved[name] = at
		}
		w.phase[name] = pv.Status.Phase
		if pv.Status.Phase == corev1.VolumeBound {
			w.state.bound++
		}
	}
	w.mu.Unlock()
	w.notify()
}

// now returns a copy of the state.
func (w *watcher) now() volumes {
	w.mu.Lock()
	defer w.mu.Unlock()
	return volumes{saved: maps.Clone(w.state.saved), bound: w.state.bound}
}

// wait returns when reached does so; one caller at a time.
func (w *watcher) wait(ctx context.Context, reached func(volumes) bool) error {
	for {
		w.mu.Lock()
		done, err := reached(w.state), w.err
		w.mu.Unlock()
		if done || err != nil {
			return err
		}
		select {
		case <-w.changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
