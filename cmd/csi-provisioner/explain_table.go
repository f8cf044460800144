package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/csi-sidecars/external-provisioner/pkg/controllers/provision"
)

// results are how the table shows them: a check that failed must be seen at once.
var results = map[provision.Result]string{
	provision.CheckPassed: "ok", provision.CheckFailed: "NO", provision.CheckNotReached: "-",
}

// tableWidth is where lines are broken.
const tableWidth = 110

// writeText prints the report for people.
func (r *explainReport) writeText(w io.Writer) error {
	j, err := r.json()
	if err != nil {
		return err
	}
	var b strings.Builder
	writeWrapped(&b, "", j.Summary)
	if j.Cause != "" {
		writeWrapped(&b, "", "Cause: "+j.Cause)
	}
	writeChecks(&b, j.Checks)
	if j.Call != nil {
		if err := writeCall(&b, j.Call); err != nil {
			return err
		}
	}
	if j.PersistentVolume != nil {
		fmt.Fprintf(&b, "\nPersistentVolume %s\n", j.PersistentVolume.Name)
		for _, use := range slices.Sorted(maps.Keys(j.PersistentVolume.Secrets)) {
			fmt.Fprintf(&b, "  %s secret %s\n", use, j.PersistentVolume.Secrets[use])
		}
	}
	if len(j.Notes) > 0 {
		b.WriteString("\nNotes\n")
	}
	for _, note := range j.Notes {
		writeWrapped(&b, "  ", note)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return nil
}

func writeChecks(b *strings.Builder, checks []reportCheck) {
	fmt.Fprintf(b, "\n%-8s%-8s%s\n", "STAGE", "RESULT", "CHECK")
	for _, check := range checks {
		fmt.Fprintf(b, "%-8s%-8s%s\n", check.Stage, results[check.Result], check.Name)
	}
}

func writeCall(b *strings.Builder, call *reportCall) error {
	var request bytes.Buffer
	if err := json.Indent(&request, call.Request, "  ", "  "); err != nil {
		return fmt.Errorf("print the request: %w", err)
	}
	fmt.Fprintf(b, "\n%s\n  %s\n", call.Method, request.String())
	if call.Secret != nil {
		fmt.Fprintf(b, "  and the values of secret %s, which was not read\n", call.Secret)
	}
	return nil
}

// String names the secret for people.
func (s *reportSecret) String() string { return s.Namespace + "/" + s.Name }

// writeWrapped writes text in lines of tableWidth, each after indent.
func writeWrapped(b *strings.Builder, indent, text string) {
	for _, line := range wrap(text, tableWidth-len(indent)) {
		b.WriteString(indent + line + "\n")
	}
}
