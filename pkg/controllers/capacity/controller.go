package capacity

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// queueName is the name of the queue in metrics and logs.
const queueName = "csistoragecapacity"

// Controller keeps the objects of one driver and instance right. Its observer methods may be called at any
// time; see VolumeCreated.
type Controller struct {
	cfg  Config
	id   identity
	loop *loop.Loop[Key]

	mu   sync.Mutex
	book *book // guarded by mu

	warned struct{ unimplemented, owner atomic.Bool } // each said once
}

// New checks cfg and assembles the controller. The metrics change only once it runs.
func New(cfg Config) (*Controller, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("capacity controller: %w", err)
	}
	c := &Controller{cfg: cfg, book: newBook()}
	objects := cfg.Objects.cfg
	c.id = identity{driver: objects.DriverName, managedBy: objects.ManagedBy, namespace: objects.Namespace, owner: cfg.Owner}
	var err error
	c.loop, err = loop.New(loop.Config[Key]{
		Name:       queueName,
		Workers:    cfg.Threads,
		Process:    c.process,
		Gate:       cfg.Gate,
		RetryStart: cfg.RetryStart,
		// The poll leaves failing pairs to their back-off, so that there is one chain of retries for each.
		// It must then be as frequent as the poll.
		RetryMax: min(cfg.RetryMax, max(cfg.PollInterval, cfg.RetryStart)),
	})
	if err != nil {
		return nil, fmt.Errorf("capacity controller: %w", err)
	}
	return c, nil
}

// Run publishes until stop ends and returns soon after: questions to the driver are cut, and writes get writeGrace. It
// waits for the caches first: nothing is written, and above all nothing deleted, before all of segments, classes and
// objects is known. Nothing is cleaned up at the end. It is called once.
func (c *Controller) Run(stop, work context.Context) error {
	classesSynced, err := c.cfg.Classes.OnClass(c.classChanged)
	if err != nil {
		return fmt.Errorf("watch storage classes: %w", err)
	}
	c.cfg.Segments.AddHandler(func(added, removed []topology.Segment) {
		c.change(func(b *book) { b.changeSegments(added, removed) })
	})
	if !cache.WaitForCacheSync(stop.Done(), c.cfg.Segments.HasSynced, classesSynced) {
		return nil
	}
	// Only now, so that an object is never taken for obsolete while what is desired is not complete.
	watching, err := c.cfg.Objects.cache.AddEventHandler(c.objectHandler())
	if err != nil {
		return fmt.Errorf("watch capacity objects: %w", err)
	}
	if !cache.WaitForCacheSync(stop.Done(), watching.HasSynced) {
		return nil
	}
	c.mu.Lock()
	counts := c.book.counts
	c.mu.Unlock()
	klog.FromContext(stop).Info("Publishing storage capacity", "driver", c.id.driver, "namespace", c.id.namespace,
		"desired", counts.goal, "present", counts.current, "obsolete", counts.obsolete)
	var polling sync.WaitGroup
	polling.Go(func() {
		p := newPoller(c.cfg.PollInterval)
		p.run(stop, func(now time.Time) {
			loop.GuardFunc(stop, queueName, func() { c.change(func(b *book) { p.poll(b, now) }) })
		})
	})
	c.loop.Run(stop, work)
	polling.Wait()
	return nil
}

// change lets f change the book, and does what follows from it.
func (c *Controller) change(f func(b *book)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c.book)
	for _, key := range c.book.takeWake() {
		c.loop.Add(key)
	}
	c.cfg.Metrics.show(c.book.counts)
}

// writeGrace is how long a write may go on after a stop. It is for a request that is under way; one that waits for the
// rate limit is given up.
const writeGrace = time.Second

// process gives one pair its turn. Nothing of it needs to be finished: the next leader asks anew.
func (c *Controller) process(ctx context.Context, key Key) loop.Verdict {
	begun := false
	c.change(func(b *book) { begun = b.begin(key) })
	if !begun {
		return loop.Done()
	}
	asking, cancel := loop.UntilStop(ctx, 0)
	defer cancel()
	writing, cancel := loop.UntilStop(ctx, writeGrace)
	defer cancel()
	// A panic is a failure like any other: the pair waits for its back-off, and does not stay with this worker for ever.
	err := loop.Guard(ctx, queueName, func() error { return c.sync(asking, writing, key) })
	if errors.Is(err, errUnsupported) {
		// Some drivers forget the capability, so we ask; but not more often than we poll.
		if !c.warned.unimplemented.Swap(true) {
			klog.FromContext(ctx).Info("The driver does not implement GetCapacity, no capacity is published and what was published before stays; it is asked again at each poll",
				"driver", c.id.driver, "pollInterval", c.cfg.PollInterval)
		}
		err = nil
	}
	c.change(func(b *book) { b.end(key, err != nil, time.Now()) })
	if err == nil {
		return loop.Done()
	}
	if asking.Err() == nil {
		klog.FromContext(ctx).Error(err, "Could not bring storage capacity up to date")
	}
	return loop.Again()
}

// errUnsupported is the driver's answer Unimplemented.
var errUnsupported = errors.New("GetCapacity is not implemented")

// sync deletes what is surplus, asks the driver, and writes what differs, unless asking has ended by then.
func (c *Controller) sync(asking, writing context.Context, key Key) error {
	v := c.view(key)
	removed := c.apply(writing, v, plan(v, c.id, nil))
	if !v.desired {
		return removed
	}
	r, err := c.ask(asking, key)
	if err != nil || r == nil {
		return errors.Join(removed, err)
	}
	if asking.Err() != nil {
		return errors.Join(removed, context.Cause(asking))
	}
	// The call may have taken long: what to write depends on what is there now.
	v = c.view(key)
	return errors.Join(removed, c.apply(writing, v, plan(v, c.id, r)))
}

func (c *Controller) view(key Key) view {
	var v view
	c.change(func(b *book) { v = b.view(key, time.Now()) })
	return v
}

// ask returns what the driver says, or nil when the class is not eligible any more: an event will follow.
func (c *Controller) ask(ctx context.Context, key Key) (*room, error) {
	req, err := c.request(key)
	if err != nil || req == nil {
		return nil, err
	}
	answer, err := c.cfg.Driver.GetCapacity(ctx, req)
	if err != nil {
		if outcome.Code(err) == codes.Unimplemented {
			return nil, fmt.Errorf("%w: %w", errUnsupported, err)
		}
		return nil, fmt.Errorf("ask for the capacity of class %q in segment %q: %w", key.Class, key.Segment, err)
	}
	r, err := roomIn(answer)
	if err != nil {
		return nil, fmt.Errorf("capacity of class %q in segment %q: %w", key.Class, key.Segment, err)
	}
	return &r, nil
}
