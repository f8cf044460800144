package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/csi-sidecars/external-provisioner/pkg/audit"
)

// auditNotes tell what a report does not prove.
var auditNotes = []string{
	"A backend may serve several clusters: a volume that nothing here accounts for may belong to another one.",
	"A volume that is being provisioned is listed before its PersistentVolume exists: run the audit again before you delete anything.",
	"Nothing was changed.",
}

// auditJSON is the JSON output. Its names are API.
type auditJSON struct {
	Version int `json:"version"`
	*audit.Report
	Notes []string `json:"notes"`
}

// auditAnswer is a report that can be printed.
type auditAnswer struct{ *audit.Report }

// data implements answer.
func (a auditAnswer) data() (any, error) {
	return auditJSON{Version: reportVersion, Report: a.Report, Notes: auditNotes}, nil
}

// writeText prints the report for people.
func (a auditAnswer) writeText(w io.Writer) error {
	report := a.Report
	var b strings.Builder
	fmt.Fprintf(&b, "driver %s: %d volumes, %d PersistentVolumes, %d unbound claims\n",
		report.Driver, report.Volumes, report.PersistentVolumes, report.UnboundClaims)
	fmt.Fprintf(&b, "\nVolumes that no PersistentVolume accounts for: %d\n", len(report.Unaccounted))
	table := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	if len(report.Unaccounted) > 0 {
		fmt.Fprintln(table, "  VOLUME ID\tCAPACITY\tUNBOUND CLAIM")
	}
	for _, v := range report.Unaccounted {
		fmt.Fprintf(table, "  %s\t%s\t%s\n", v.ID, size(v.CapacityBytes), orNone(v.Claim))
	}
	_ = table.Flush() // a strings.Builder takes everything
	fmt.Fprintf(&b, "\nPersistentVolumes whose volume the driver does not list: %d\n", len(report.Missing))
	if len(report.Missing) > 0 {
		fmt.Fprintln(table, "  NAME\tPHASE\tDELETING\tCLAIM\tVOLUME ID")
	}
	for _, pv := range report.Missing {
		fmt.Fprintf(table, "  %s\t%s\t%t\t%s\t%s\n", pv.Name, pv.Phase, pv.Deleting, orNone(pv.Claim), pv.VolumeID)
	}
	_ = table.Flush()
	b.WriteString("\n")
	for _, note := range auditNotes {
		writeWrapped(&b, "", note)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return nil
}

func size(bytes int64) string {
	if bytes == 0 {
		return "unknown"
	}
	return resource.NewQuantity(bytes, resource.BinarySI).String()
}

func orNone(s string) string {
	if s == "" {
		return "<none>"
	}
	return s
}

// writeHelp prints what the command is for and its own flags.
func (o *auditOptions) writeHelp(w io.Writer) error {
	var b strings.Builder
	b.WriteString(`csi-provisioner audit compares the volumes that the driver lists with the PersistentVolumes of the cluster. It
prints the volumes that no PersistentVolume accounts for, and the PersistentVolumes whose volume the driver does not
list. It deletes and writes nothing. The driver needs the capability LIST_VOLUMES, and its socket must be reachable.

Usage: csi-provisioner audit [flags]

All flags of csi-provisioner are known too: paste the sidecar's arguments. With --node-deployment the driver lists the
volumes of its node, and only PersistentVolumes of that node are expected. Exit code: 0 with an answer, whatever it is,
1 without one, 2 for a wrong command line.

Audit:
`)
	o.own.VisitAll(func(f *pflag.Flag) { b.WriteString(flagHelp(f)) })
	b.WriteString("\nThe other flags: csi-provisioner --help\n")
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print the help: %w", err)
	}
	return nil
}
