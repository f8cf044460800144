package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
)

// demo is one run. The first group of fields is given, the second comes while it runs.
type demo struct {
	keep   bool
	binDir string
	out    io.Writer
	begin  time.Time

	dir         string
	cluster     *cluster.Cluster
	driver      *cluster.Process
	provisioner *cluster.Process
	metricsURL  string
	pvName      string
	callsShown  int // how many bytes of the driver's log were shown
}

// step is a chapter of the story.
type step struct {
	title string
	do    func(context.Context) error
}

// run tells the story from start to end; nothing it started is left when it returns.
func (d *demo) run(ctx context.Context) (err error) {
	if d.dir, err = os.MkdirTemp("", "demo-"); err != nil {
		return err
	}
	defer d.stop()
	steps := []step{
		{"Start a Kubernetes control plane on loopback ports", d.startCluster},
		{"Start a CSI driver that keeps volumes in memory, and csi-provisioner beside it", d.startSidecar},
		{"Create StorageClass " + className + " and a claim of it", d.createClaim},
		{"Wait until the claim is Bound", d.waitBound},
		{"What there is now", d.show},
	}
	if d.keep {
		steps = append(steps, step{"All of it stays up until Ctrl-C", d.wait})
	} else {
		steps = append(steps, step{"Delete the claim, and wait until its volume is gone", d.deleteClaim})
	}
	for i, step := range steps {
		fmt.Fprintf(d.out, "\n%d. %s\n", i+1, step.title)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.title, err)
		}
	}
	return nil
}

// note prints a line of the current chapter, with the time since the start.
func (d *demo) note(format string, args ...any) {
	fmt.Fprintf(d.out, "   %6.1fs  %s\n", time.Since(d.begin).Seconds(), fmt.Sprintf(format, args...))
}

// line prints a line without the time, and without what is blank at its end.
func (d *demo) line(format string, args ...any) {
	fmt.Fprintln(d.out, strings.TrimRight("            "+fmt.Sprintf(format, args...), " \n"))
}

// wait blocks until somebody stops the demo, or a program of it ends by itself.
func (d *demo) wait(ctx context.Context) error {
	kubectl := fmt.Sprintf("%s/cluster/kubectl --kubeconfig %s", d.binDir, d.cluster.Kubeconfig())
	d.line("kubeconfig: %s", d.cluster.Kubeconfig())
	d.line("metrics:    %s", d.metricsURL)
	d.line("logs:       %s/*.log", d.dir)
	d.line("")
	d.line("%s get pvc,pv,storageclass,events", kubectl)
	d.line("%s delete pvc %s", kubectl, claimName)
	select {
	case <-ctx.Done():
		return nil // That is how it is meant to end.
	case <-d.driver.Done():
		return fmt.Errorf("the driver has ended:\n%s", d.driver.Log())
	case <-d.provisioner.Done():
		return fmt.Errorf("csi-provisioner has ended:\n%s", d.provisioner.Log())
	}
}

// stop ends what was started, in the order in which it would miss the others.
func (d *demo) stop() {
	fmt.Fprintln(d.out)
	for _, p := range []struct {
		name    string
		process *cluster.Process
	}{{"csi-provisioner", d.provisioner}, {"the driver", d.driver}} {
		if p.process != nil {
			code := p.process.Stop(30 * time.Second)
			d.note("%s is stopped (exit code %d)", p.name, code)
		}
	}
	if d.cluster != nil {
		d.cluster.Stop()
		d.note("the control plane is stopped")
	}
	_ = os.RemoveAll(d.dir) // A leftover in the temporary folder harms nobody.
}
