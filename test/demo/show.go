package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// show prints claim, PersistentVolume, events and the driver's calls, as a person reads them.
func (d *demo) show(ctx context.Context) error {
	client := d.cluster.Client().CoreV1()
	claim, err := client.PersistentVolumeClaims(namespace).Get(ctx, claimName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	pv, err := client.PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	events, err := d.events(ctx, claim)
	if err != nil {
		return err
	}
	d.table("Claim",
		"name", claim.Namespace+"/"+claim.Name,
		"status", string(claim.Status.Phase),
		"capacity", claim.Status.Capacity.Storage().String(),
		"class", *claim.Spec.StorageClassName)
	rows := []string{
		"name", pv.Name,
		"status", string(pv.Status.Phase),
		"capacity", pv.Spec.Capacity.Storage().String(),
		"reclaim policy", string(pv.Spec.PersistentVolumeReclaimPolicy),
		"finalizers", strings.Join(pv.Finalizers, ", "),
	}
	if csi := pv.Spec.CSI; csi != nil {
		rows = append(rows, "driver", csi.Driver, "volume", csi.VolumeHandle)
	}
	d.table("PersistentVolume", rows...)
	rows = nil
	for _, event := range events {
		rows = append(rows, event.Reason, event.Message)
	}
	d.table("Events of the claim", rows...)
	d.showCalls()
	return nil
}

// table prints pairs of a name and a value.
func (d *demo) table(title string, pairs ...string) {
	d.line("")
	d.line("%s", title)
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for pair := range slices.Chunk(pairs, 2) {
		fmt.Fprintf(w, "  %s\t%s\n", pair[0], pair[1])
	}
	_ = w.Flush() // Into memory: cannot fail.
	for line := range strings.Lines(b.String()) {
		d.line("%s", line)
	}
}

// events returns the claim's events, oldest first. They are written in the background: the last is waited for.
func (d *demo) events(ctx context.Context, claim *corev1.PersistentVolumeClaim) ([]corev1.Event, error) {
	ctx, cancel := limit(ctx)
	defer cancel()
	var events []corev1.Event
	err := d.provisioner.WaitReady(ctx, func(ctx context.Context) error {
		list, err := d.cluster.Client().CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(claim.UID)})
		if err != nil {
			return err
		}
		events = list.Items
		if !slices.ContainsFunc(events, func(e corev1.Event) bool { return e.Reason == "ProvisioningSucceeded" }) {
			return errors.New("no event ProvisioningSucceeded yet")
		}
		return nil
	})
	slices.SortStableFunc(events, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
	return events, err
}

// showCalls prints the driver's record since the last time: its log has one line for each call.
func (d *demo) showCalls() {
	log := d.driver.Log()
	d.line("")
	d.line("Calls of the driver")
	for line := range strings.Lines(log[d.callsShown:]) {
		d.line("  %s", line)
	}
	d.callsShown = len(log)
}
