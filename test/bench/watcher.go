package main

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// volumes is the state of the PersistentVolumes.
type volumes struct {
	saved map[string]time.Time // name of the claim → when its PersistentVolume was first seen
	bound int
}

// watcher follows the PersistentVolumes from a moment at which there are none.
type watcher struct {
	stop    context.CancelFunc
	changed chan struct{} // holds a token when something has changed

	mu    sync.Mutex
	state volumes
	phase map[string]corev1.PersistentVolumePhase // name of the claim → phase
}

func newWatcher() *watcher {
	return &watcher{
		changed: make(chan struct{}, 1),
		state:   volumes{saved: map[string]time.Time{}}, phase: map[string]corev1.PersistentVolumePhase{},
	}
}

// watchVolumes returns when the watch runs. It is an informer, because the API server may end a watch at any time.
func watchVolumes(ctx context.Context, client kubernetes.Interface) (*watcher, error) {
	w := newWatcher()
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "persistentvolumes", metav1.NamespaceAll, fields.Everything()),
		ObjectType:    &corev1.PersistentVolume{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { w.see(obj, false, time.Now()) },
			UpdateFunc: func(_, obj any) { w.see(obj, false, time.Now()) },
			DeleteFunc: func(obj any) { w.see(obj, true, time.Now()) },
		},
	})
	ctx, w.stop = context.WithCancel(ctx)
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		w.stop()
		return nil, fmt.Errorf("watch PersistentVolumes: %w", context.Cause(ctx))
	}
	if n := len(store.List()); n > 0 {
		w.stop()
		return nil, fmt.Errorf("%d PersistentVolumes are there before the first claim", n)
	}
	return w, nil
}

func (w *watcher) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// see takes in what the informer says.
func (w *watcher) see(obj any, deleted bool, at time.Time) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	pv, ok := obj.(*corev1.PersistentVolume)
	if !ok || pv.Spec.ClaimRef == nil {
		return
	}
	w.mu.Lock()
	name := pv.Spec.ClaimRef.Name
	if w.phase[name] == corev1.VolumeBound {
		w.state.bound--
	}
	if deleted {
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
		done := reached(w.state)
		w.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-w.changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
