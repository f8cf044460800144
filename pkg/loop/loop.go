package loop

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// Config describes a Loop.
type Config[K comparable] struct {
	// Name is the queue's name in logs, the label "name" of its workqueue metrics, and the component of its panics. Required.
	Name string
	// Workers is how many keys are processed at once. Zero means that nothing is ever processed.
	Workers int
	// Process does the work for one key. It is never called for the same key twice at once. Required.
	// Its context is the work context of Run; see UntilStop. A panic counts as Again; see Guard.
	Process func(ctx context.Context, key K) Verdict
	// Gate, if not nil, is waited for before each key is processed: a closed gate pauses the loop and
	// loses nothing. It returns an error only when its context has ended; it gets the stop context of Run.
	Gate func(ctx context.Context) error
	// RetryStart and RetryMax bound the exponential back-off of Again. Required.
	RetryStart, RetryMax time.Duration
	// BusyMax bounds the schedule of Busy. Default: the smaller of ten times RetryStart and RetryMax.
	BusyMax time.Duration
}

// Loop is a queue with its workers. Its methods may be called concurrently, also before Run.
type Loop[K comparable] struct {
	cfg     Config[K]
	queue   workqueue.TypedDelayingInterface[K]
	backoff backoff[K]
}

// New checks cfg and assembles the loop; nothing runs before Run.
func New[K comparable](cfg Config[K]) (*Loop[K], error) {
	var errs []error
	if cfg.Name == "" {
		errs = append(errs, errors.New("no name"))
	}
	if cfg.Process == nil {
		errs = append(errs, errors.New("no Process"))
	}
	if cfg.RetryStart <= 0 || cfg.RetryMax <= 0 {
		errs = append(errs, errors.New("RetryStart and RetryMax must be above zero"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("loop %q: %w", cfg.Name, err)
	}
	if cfg.BusyMax <= 0 {
		cfg.BusyMax = 10 * cfg.RetryStart
	}
	cfg.BusyMax = min(cfg.BusyMax, cfg.RetryMax)
	return &Loop[K]{
		cfg:     cfg,
		queue:   workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[K]{Name: cfg.Name}),
		backoff: backoff[K]{start: cfg.RetryStart, max: cfg.RetryMax, busyMax: cfg.BusyMax, tries: map[K]tries{}},
	}, nil
}

// Add brings the key to a worker at once, also when it waits for a later turn. A key that is being
// processed runs again afterwards. After Run has ended it does nothing.
func (l *Loop[K]) Add(key K) { l.queue.Add(key) }

// AddAfter is Add after d.
func (l *Loop[K]) AddAfter(key K, d time.Duration) { l.queue.AddAfter(key, d) }

// Forget resets the back-off of a key whose object is gone.
func (l *Loop[K]) Forget(key K) { l.backoff.forget(key) }

// Len returns how many keys wait for a worker now; those that wait for their time are not counted.
func (l *Loop[K]) Len() int { return l.queue.Len() }

// Run processes keys and returns when stop has ended and the last key at hand is finished: after stop no new key is
// taken. Process gets work as its context, which must outlive stop for as long as a key at hand may take.
func (l *Loop[K]) Run(stop, work context.Context) {
	logger := klog.LoggerWithName(klog.FromContext(work), l.cfg.Name)
	work = withStop(klog.NewContext(work, logger), stop)
	var workers sync.WaitGroup
	if l.cfg.Workers > 0 {
		workers.Go(func() { l.dispatch(stop, work, &workers) })
	}
	<-stop.Done()
	l.queue.ShutDown()
	workers.Wait()
}

// dispatch takes keys and gives each to a worker of its own until the queue is shut down. A worker lives as long as
// its key is at hand, because a hundred that wait would hold the stacks that they once needed.
func (l *Loop[K]) dispatch(stop, work context.Context, workers *sync.WaitGroup) {
	slots := make(chan struct{}, l.cfg.Workers)
	for {
		slots <- struct{}{}
		key, shutdown := l.queue.Get()
		if shutdown {
			return
		}
		// ShutDown hands out what is queued; those keys are not ours to begin any more.
		if stop.Err() != nil || !l.admit(stop, key) {
			l.queue.Done(key)
			<-slots
			continue
		}
		workers.Go(func() {
			defer func() { <-slots }()
			l.step(work, key)
		})
	}
}

// admit waits for the gate, and returns false when the key is not to be processed now. A key that the gate panics for
// comes again after its back-off.
func (l *Loop[K]) admit(stop context.Context, key K) bool {
	if l.cfg.Gate == nil {
		return true
	}
	err := Guard(stop, l.cfg.Name, func() error { return l.cfg.Gate(stop) })
	if _, panicked := errors.AsType[*PanicError](err); panicked {
		l.queue.AddAfter(key, l.backoff.next(key, false))
	}
	return err == nil
}

// step processes one key. A panic is an error like any other: the key comes again after its back-off.
func (l *Loop[K]) step(work context.Context, key K) {
	defer l.queue.Done(key)
	logger := klog.LoggerWithValues(klog.FromContext(work), "key", key)
	verdict := Again()
	_ = Guard(klog.NewContext(work, logger), l.cfg.Name, func() error {
		verdict = l.cfg.Process(klog.NewContext(work, logger), key)
		return nil
	})
	logger.V(5).Info("Processed", "verdict", verdict.String())
	switch verdict.kind {
	case done:
		l.backoff.forget(key)
	case again, busy:
		l.queue.AddAfter(key, l.backoff.next(key, verdict.kind == busy))
	case after:
		l.queue.AddAfter(key, verdict.after)
	case parked:
	}
}

// Drain returns a context that carries the values of stop and ends only d after stop has: what is in
// flight when stop ends has that long. Call the function when all work is done.
func Drain(stop context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	work, cancel := context.WithCancelCause(context.WithoutCancel(stop))
	release := context.AfterFunc(stop, func() {
		time.AfterFunc(d, func() { cancel(fmt.Errorf("not finished within %s of the stop: %w", d, context.DeadlineExceeded)) })
	})
	return work, func() { release(); cancel(context.Canceled) }
}

// leaveAfter is how long RunUntil waits after the end of its context.
const leaveAfter = 200 * time.Millisecond

// RunUntil runs f with ctx and returns when f has, or soon after the end of ctx: then f goes on alone until it notices.
// It is for what has nothing to finish, and may sleep through the end of its context: between two tries of a watch that
// the API server refuses, a reflector of client-go does so for up to a minute.
func RunUntil(ctx context.Context, f func(context.Context)) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		Restart(ctx, "background", f)
	}()
	select {
	case <-ended:
		return
	case <-ctx.Done():
	}
	select {
	case <-ended:
	case <-time.After(leaveAfter):
	}
}
