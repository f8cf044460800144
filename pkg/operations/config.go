package operations

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

const (
	// maxOperations bounds the operations in flight; half of it those of one namespace.
	maxOperations = 2000
	// maxRequests is how many requests are sent at once.
	maxRequests = 8
	// missingInARow is after how many missing Leases the search by number ends.
	missingInARow = 64
	// DefaultDuration is how long a Lease lasts without a renewal.
	DefaultDuration = time.Minute
	// askAgain is how often rights that are missing are asked for again.
	askAgain = time.Minute
)

// Rights tells what the API server lets this service account do with Leases in their namespace.
type Rights interface {
	// Observe takes note of the error of a request, and asks whether the verb is granted if it is a 403. It returns nil
	// if the verb may be used, and else an error that names the rule to add.
	Observe(ctx context.Context, verb string, err error) error
	// Denied reports whether the API server has said that the verb is not granted.
	Denied(verb string) bool
	// AskAgain asks again for what was refused.
	AskAgain(ctx context.Context)
}

// Listener hears of operations. Its methods must not block; they may call the Store.
type Listener interface {
	// Changed is called when Begin or Ended would now answer otherwise for the claim.
	Changed(claim types.UID)
	// Recovered is called for an operation that another process has left and that is now for this one to finish. It is in
	// the state Recovered until End is called.
	Recovered(op Operation)
	// Reported is called once for each Lease whose operation nobody drives and that cannot be replayed.
	Reported(lease *coordinationv1.Lease, reason error)
}

// Config describes a Store. All fields are required unless they say otherwise.
type Config struct {
	// Leases are those of the driver's own namespace, by a client with limits of its own.
	Leases coordinationclient.LeaseInterface
	// Rights are the rights to them.
	Rights Rights
	// LeaseName is the name of the leader lease, or what it would be. The names of all slots begin with it.
	LeaseName string
	// Driver is the CSI driver's name; Node the node's in node deployment, else empty.
	Driver, Node string
	// Identity is unique to this process.
	Identity string
	// Exclusive says that Run is only called while no other process works for the driver (leader election, or the only
	// instance of a node). Then everything that was left is taken at once, and nothing is renewed.
	Exclusive bool
	// SamePod, optional, reports whether a holder is an earlier process of this pod that has certainly ended.
	SamePod func(holder string) bool
	// ReadOnly records no operation (--operation-leases=false); what was left is taken over all the same.
	ReadOnly bool
	// Labels, optional, are put on Leases that are created, beside our own.
	Labels map[string]string
	// Duration is how long a Lease lasts without a renewal. Default: DefaultDuration.
	Duration time.Duration
	// Listener hears of changes.
	Listener Listener
}

func (c *Config) validate() error {
	var errs []error
	for _, field := range []struct {
		name    string
		missing bool
	}{
		{"Leases", c.Leases == nil},
		{"Rights", c.Rights == nil},
		{"LeaseName", c.LeaseName == ""},
		{"Driver", c.Driver == ""},
		{"Identity", c.Identity == ""},
		{"Listener", c.Listener == nil},
	} {
		if field.missing {
			errs = append(errs, fmt.Errorf("no %s", field.name))
		}
	}
	if c.Duration == 0 {
		c.Duration = DefaultDuration
	}
	if c.Duration < time.Second {
		errs = append(errs, fmt.Errorf("the duration %s is less than a second", c.Duration))
	}
	errs = append(errs, c.reader().check())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("operations: %w", err)
	}
	return nil
}

func (c *Config) reader() reader {
	return reader{
		names: names{lease: c.LeaseName, driver: c.Driver, node: c.Node}, self: c.Identity, exclusive: c.Exclusive, samePod: c.SamePod,
	}
}

// renewEvery returns how often an operation that lasts is renewed; zero means never.
func (c *Config) renewEvery() time.Duration {
	if c.Exclusive {
		return 0
	}
	return c.Duration / 3
}
