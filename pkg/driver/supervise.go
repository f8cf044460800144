package driver

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

// Ready reports whether the driver is there: connected, and known to be the one that Connect met.
func (d *Driver) Ready() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.back == nil && d.link.alive()
}

// Away returns since when the driver is away, and why the last try to connect failed, nil when none has failed yet. A
// zero time means that the driver is there, or that Supervise has not noticed its loss yet.
func (d *Driver) Away() (since time.Time, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.back == nil {
		return time.Time{}, nil
	}
	return d.wait.began, d.wait.latest()
}

// Gate blocks while the driver is away. It returns an error only when ctx has ended, and that is the
// cause of ctx's end. It fits loop.Config.Gate.
func (d *Driver) Gate(ctx context.Context) error {
	for {
		d.mu.Lock()
		back := d.back
		d.mu.Unlock()
		if back == nil {
			return nil
		}
		select {
		case <-back:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// OnReady has f called each time the driver has returned after it was away, after Gate has opened. f must
// not block: it is called by Supervise, in the order of registration.
func (d *Driver) OnReady(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hooks = append(d.hooks, f)
}

// Supervise watches the connection. When it is lost, Supervise closes the gate, connects again, waits
// until the driver is ready and compares its name, capabilities and, with Config.Node, its node's topology with those
// that Connect found; if they are the same, the gate opens. It returns nil when ctx has ended, and an error when the driver came back
// as another one, when it answers with an error that waiting cannot cure, or when it was away for
// Config.AwayLimit and Config.MayGiveUp agrees; the gate then stays closed. Calls in flight do not depend on ctx.
func (d *Driver) Supervise(ctx context.Context) error {
	for d.link.lost(ctx) {
		if err := d.regain(ctx); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the wait was ended by our caller
			}
			return err
		}
	}
	return nil
}

// regain brings the driver back, or returns why it cannot.
func (d *Driver) regain(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	logger.Error(nil, "Lost the connection to the CSI driver, waiting for its return", "driver", d.identity.Name, "address", d.cfg.Address)
	wait := newPatience(d.cfg.Address)
	d.mu.Lock()
	d.back, d.wait = make(chan struct{}), wait
	d.link.retire()
	d.mu.Unlock()
	d.cfg.Metrics.setConnected(false)

	waiting, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	if d.cfg.AwayLimit > 0 {
		go d.limit(waiting, giveUp)
	}
	l, identity, err := d.establish(waiting, wait, d.recognise)
	if err != nil {
		return err
	}
	if err := difference(d.identity, identity); err != nil {
		l.retire()
		return fmt.Errorf("the CSI driver at %q came back changed: %w", d.cfg.Address, err)
	}
	d.mu.Lock()
	d.link = l
	close(d.back)
	d.back = nil
	hooks := d.hooks
	d.mu.Unlock()
	d.cfg.Metrics.setConnected(true)
	logger.Info("The CSI driver is back", "driver", identity.Name, "address", d.cfg.Address, "away", wait.waited())
	for _, f := range hooks {
		f()
	}
	return nil
}

// limit ends a wait for the driver when it is too long, and we may give up.
func (d *Driver) limit(ctx context.Context, giveUp context.CancelCauseFunc) {
	ticker := time.NewTicker(d.cfg.AwayLimit)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if d.cfg.MayGiveUp == nil || d.cfg.MayGiveUp() {
			giveUp(fmt.Errorf("the driver may be away for %s and no longer", d.cfg.AwayLimit))
			return
		}
	}
}

// recognise asks a driver that came back. It has just started, so what says "not yet" to any question is
// asked again from the beginning.
func (d *Driver) recognise(ctx context.Context, l *link, wait *patience) (Identity, error) {
	for {
		identity, err := d.recogniseOnce(ctx, l, wait)
		if err == nil || ctx.Err() != nil || !notYet(err) {
			return identity, err
		}
		wait.setback(ctx, fmt.Errorf("%w: %w", errNotYet, err))
		if !pause(ctx, probeEvery) {
			return Identity{}, ctx.Err()
		}
	}
}

func (d *Driver) recogniseOnce(ctx context.Context, l *link, wait *patience) (Identity, error) {
	if err := d.probe(ctx, l, wait); err != nil {
		return Identity{}, err
	}
	name, err := d.askName(ctx, l)
	if err != nil {
		return Identity{}, err
	}
	return d.askRest(ctx, l, name)
}
