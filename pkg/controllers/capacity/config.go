package capacity

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// Driver is asked for room. The deadline of a call is its own matter.
type Driver interface {
	GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error)
}

// Segments is the live set of topology segments. It never changes a slice that it handed out.
type Segments interface {
	// AddHandler registers a function that is told of each change, one call at a time, in order. The first call brings
	// all segments as added, before AddHandler returns or before HasSynced turns true.
	AddHandler(changed func(added, removed []topology.Segment))
	// HasSynced reports whether the set has been computed from complete caches.
	HasSynced() bool
}

// Classes is the cache of StorageClasses. Its objects are shared and read-only.
type Classes interface {
	// Class returns the class, or nil when there is none of that name.
	Class(name string) *storagev1.StorageClass
	// OnClass registers a handler that gets every class, and returns whether it has got those of the start.
	OnClass(handler cluster.Handler[*storagev1.StorageClass]) (synced func() bool, err error)
}

// Config describes a Controller.
type Config struct {
	// Driver is asked for room. Required.
	Driver Driver
	// Segments are published for. Required.
	Segments Segments
	// Classes are watched for those of the driver. Required; the caller runs it.
	Classes Classes
	// Objects are the CSIStorageCapacity objects of the driver and this instance. Required; the caller runs it.
	Objects *Objects
	// Owner becomes the controlling owner of each object. Nil means no owner; references that are there stay.
	Owner *metav1.OwnerReference
	// PollInterval is the time within which each pair is asked for again. Required, above zero
	// (--capacity-poll-interval).
	PollInterval time.Duration
	// Threads is how many pairs are worked on at once (--capacity-threads). Zero means that nothing is ever
	// processed.
	Threads int
	// ForImmediateBinding also publishes for classes with binding mode Immediate
	// (--capacity-for-immediate-binding).
	ForImmediateBinding bool
	// RespectAllowedTopologies leaves out the pairs that the class's allowedTopologies forbid
	// (--capacity-respect-allowed-topologies).
	RespectAllowedTopologies bool
	// RetryStart and RetryMax bound the back-off of a failing pair (--retry-interval-start, -max). Required.
	// A pair is never left alone for longer than PollInterval.
	RetryStart, RetryMax time.Duration
	// Gate, if not nil, holds the workers back while it blocks: the driver is away. See loop.Config.
	Gate func(ctx context.Context) error
	// Metrics show the state. Nil means that nobody looks.
	Metrics *Metrics
}

func (cfg *Config) validate() error {
	var errs []error
	for _, field := range []struct {
		name    string
		missing bool
	}{
		{"Driver", cfg.Driver == nil},
		{"Segments", cfg.Segments == nil},
		{"Classes", cfg.Classes == nil},
		{"Objects", cfg.Objects == nil},
	} {
		if field.missing {
			errs = append(errs, errors.New("no "+field.name))
		}
	}
	if cfg.PollInterval <= 0 {
		errs = append(errs, fmt.Errorf("poll interval %s is not above zero", cfg.PollInterval))
	}
	if cfg.Threads < 0 {
		errs = append(errs, fmt.Errorf("%d threads", cfg.Threads))
	}
	return errors.Join(errs...)
}
