package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/driver"
	"github.com/csi-sidecars/external-provisioner/pkg/operations"
	"github.com/csi-sidecars/external-provisioner/pkg/process"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// forgetWord is the word after "operations" that ends operations.
const forgetWord = "forget"

// operationsOptions are the flags of the command operations.
type operationsOptions struct {
	queryOptions
	namespace string
	driver    string
}

func newOperationsOptions() *operationsOptions {
	o := &operationsOptions{queryOptions: newQueryOptions(operationsCommand)}
	o.own.StringVarP(&o.namespace, "namespace", "n", "", "The `namespace` of the Leases. Empty means that of the leader lease, see --leader-election-namespace.")
	o.own.StringVar(&o.driver, "driver", "", "The driver's `name`, where its socket cannot be reached; --csi-address is not used then.")
	o.addShared()
	o.own.DurationVar(&o.wait, "wait", 30*time.Second, "How long to wait for the API server, and for up to 5s of that for the driver.")
	return o
}

// leases returns the Leases to forget, nil to list.
func (o *operationsOptions) leases() []string {
	if len(o.words) == 0 {
		return nil
	}
	return o.words[1:]
}

// Validate returns every complaint about flags and environment in one joined error, or nil.
func (o *operationsOptions) Validate(env environment) error {
	var c complaints
	switch {
	case len(o.words) > 0 && o.words[0] != forgetWord:
		c.addf("operations takes no argument %q: write nothing to list operations, or %s LEASE to end one", o.words[0], forgetWord)
	case len(o.words) == 1:
		c.addf("name the Leases whose operations to forget, as \"csi-provisioner operations\" lists them")
	}
	if o.namespace != "" {
		if problems := validation.IsDNS1123Label(o.namespace); len(problems) > 0 {
			c.addf("--namespace: %q is not a namespace: %s", o.namespace, strings.Join(problems, "; "))
		}
	}
	return errors.Join(errors.Join(c...), o.queryOptions.Validate(env))
}

// answer lists operations, or ends those that were named.
func (o *operationsOptions) answer(ctx context.Context, env environment, w io.Writer) error {
	cfg, err := o.Complete(env, version)
	if err != nil {
		return err
	}
	if o.namespace != "" {
		cfg.Election.Namespace = o.namespace
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.wait, fmt.Errorf("no answer within %s (--wait)", o.wait))
	defer cancel()
	config, err := cluster.RESTConfig(ctx, cfg.Kube.address())
	if err != nil {
		return err
	}
	api, err := newAPI(config, cfg)
	if err != nil {
		return err
	}
	name, err := o.driverName(ctx, cfg)
	if err != nil {
		return err
	}
	leases := operations.Config{
		Leases:    api.clients.Lease.CoordinationV1().Leases(cfg.Election.Namespace),
		LeaseName: process.LeaseName(name), Driver: name, Node: cfg.Node.Name,
	}
	if o.leases() != nil {
		return forget(ctx, leases, o.leases(), w)
	}
	report, err := listOperations(ctx, api.clients.Core, leases, cfg.Election.Namespace)
	if err != nil {
		return err
	}
	return o.print(w, report)
}

// driverName returns the name that was given, or asks the driver.
func (o *operationsOptions) driverName(ctx context.Context, cfg Config) (string, error) {
	if o.driver != "" {
		return o.driver, nil
	}
	ctx, cancel := context.WithTimeout(ctx, driverWait)
	defer cancel()
	d, err := driver.Connect(ctx, driverConfig(cfg))
	if err != nil {
		return "", fmt.Errorf("%w; where the driver's socket cannot be reached, give --driver", err)
	}
	defer d.Close()
	return d.Identity().Name, nil
}

// listOperations reads the Leases, and of each claim the newest failure.
func listOperations(ctx context.Context, client kubernetes.Interface, leases operations.Config, namespace string) (operationsReport, error) {
	records, err := operations.List(ctx, leases)
	if err != nil {
		return operationsReport{}, fmt.Errorf("read the operations in namespace %s: %w", namespace, err)
	}
	report := operationsReport{Driver: leases.Driver, Namespace: namespace, Operations: []operationReport{}}
	for _, record := range records {
		r := operationReportOf(record, time.Now())
		if record.Operation != nil {
			r.LastAnswer = lastFailure(ctx, client, record.Operation.Claim)
		}
		report.Operations = append(report.Operations, r)
	}
	return report, nil
}

// lastFailure returns the text of the newest Warning of the claim, "" if there is none or if events cannot be read: they
// are not kept for long.
func lastFailure(ctx context.Context, client kubernetes.Interface, claim operations.Object) string {
	list, err := client.CoreV1().Events(claim.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.uid": string(claim.UID), "type": corev1.EventTypeWarning}.String(),
	})
	if err != nil || len(list.Items) == 0 {
		return ""
	}
	newest := slices.MaxFunc(list.Items, func(a, b corev1.Event) int { return timeOf(a).Compare(timeOf(b)) })
	return newest.Message
}

func timeOf(event corev1.Event) time.Time {
	if event.LastTimestamp.IsZero() {
		return event.EventTime.Time
	}
	return event.LastTimestamp.Time
}

// forget ends the operations that these Leases say. It stops at the first that it cannot end; those before it are ended.
func forget(ctx context.Context, leases operations.Config, names []string, w io.Writer) error {
	records, err := operations.List(ctx, leases)
	if err != nil {
		return fmt.Errorf("read the operations: %w", err)
	}
	for _, name := range names {
		i := slices.IndexFunc(records, func(r operations.Record) bool { return r.Lease.Name == name })
		if i < 0 {
			return fmt.Errorf("no Lease %s says an operation of driver %s: see \"csi-provisioner operations\"", name, leases.Driver)
		}
		lease := records[i].Lease.DeepCopy()
		lease.Annotations[wellknown.AnnForgetOperation] = "true"
		if _, err := leases.Leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("annotate Lease %s: %w", name, err)
		}
		volume := "the volume that it names"
		if op := records[i].Operation; op != nil {
			volume = fmt.Sprintf("volume %q of claim %s/%s", op.VolumeName, op.Claim.Namespace, op.Claim.Name)
		}
		if _, err := fmt.Fprintf(w, "Lease %s: the sidecar ends the operation at its next try, within five minutes. If driver %s has %s, nothing stands for it any more: remove it in the storage system.\n", name, leases.Driver, volume); err != nil {
			return fmt.Errorf("print the answer: %w", err)
		}
	}
	return nil
}

// writeHelp prints what the command is for and its own flags.
func (o *operationsOptions) writeHelp(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`csi-provisioner operations lists the CreateVolume operations that are in flight or were left unfinished, as the
Leases in the sidecar's namespace record them. "operations forget LEASE" ends one by hand: look for its volume in the
storage system first, and remove it there.

Usage: csi-provisioner operations [flags]
       csi-provisioner operations forget [flags] LEASE...

All flags of csi-provisioner are known too: paste the sidecar's arguments. With --node-deployment the operations are
those of its node. Exit code: 0 with an answer, whatever it is, 1 without one, 2 for a wrong command line.

Operations:
`)
	o.own.VisitAll(func(f *pflag.Flag) { b.WriteString(flagHelp(f)) })
	b.WriteString("\nThe other flags: csi-provisioner --help\n")
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print the help: %w", err)
	}
	return nil
}
