package driveraway

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
)

const (
	// After is how long the driver must be away before anybody is told. Most restarts of a driver are shorter. It is less
	// than the time after which a leader without a driver ends, so that the leader still tells.
	After = 25 * time.Second
	// interval is the time between two looks.
	interval = 5 * time.Second
	// reason of the events.
	reason = "DriverNotConnected"
)

// Config of a Controller. All fields but Pod are required.
type Config struct {
	// Driver is the name of the CSI driver.
	Driver string
	// Away returns since when the driver is not connected, and why the last try to connect failed; nil when none has
	// failed yet. A zero time means that the driver is connected.
	Away func() (since time.Time, why error)
	// Waiting returns the claims whose provisioning could begin if the driver were connected, the oldest first.
	Waiting func() []*corev1.PersistentVolumeClaim
	// Recorder records the events.
	Recorder record.EventRecorder
	// Pod gets the event that says how many claims wait when they are too many for an event each. Nil means that nobody
	// is told that.
	Pod *corev1.ObjectReference
}

// Controller tells of a driver that is away. Make one with New.
type Controller struct {
	cfg  Config
	told notices
}

// New checks cfg; nothing is asked before Run.
func New(cfg Config) (*Controller, error) {
	if cfg.Driver == "" || cfg.Away == nil || cfg.Waiting == nil || cfg.Recorder == nil {
		return nil, errors.New("driveraway: Driver, Away, Waiting and Recorder are required")
	}
	return &Controller{cfg: cfg}, nil
}

// Run looks after the driver until stop ends; work is not used. It may be called again after it has returned.
func (c *Controller) Run(stop, _ context.Context) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-stop.Done():
			return nil
		case <-ticker.C:
			loop.GuardFunc(stop, "driver away", func() { c.look(stop) })
		}
	}
}

// look tells those that are to be told now.
func (c *Controller) look(ctx context.Context) {
	since, why := c.cfg.Away()
	now := time.Now()
	var waiting []*corev1.PersistentVolumeClaim
	if !since.IsZero() && now.Sub(since) >= After {
		waiting = c.cfg.Waiting()
	}
	tell, overflow := c.told.next(now, since, After, waiting)
	if len(tell) == 0 && overflow == 0 {
		return
	}
	message := fmt.Sprintf("Waiting for CSI driver %q, which has not been connected since %s", c.cfg.Driver, since.UTC().Format(time.RFC3339))
	if why != nil {
		message += ": " + why.Error()
	}
	for _, claim := range tell {
		c.cfg.Recorder.Event(claim, corev1.EventTypeWarning, reason, message)
	}
	if overflow > 0 && c.cfg.Pod != nil {
		c.cfg.Recorder.Event(c.cfg.Pod, corev1.EventTypeWarning, reason,
			fmt.Sprintf("%d claims wait for CSI driver %q, and only the first %d of them have an event. %s", overflow, c.cfg.Driver, maxClaims, message))
	}
	klog.FromContext(ctx).Error(why, "Claims wait for the CSI driver, which is not connected", "driver", c.cfg.Driver, "since", since, "claims", len(waiting))
}
