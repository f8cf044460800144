package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/csi-sidecars/external-provisioner/pkg/operations"
	"github.com/csi-sidecars/external-provisioner/pkg/text"
)

// What the state of an operation is called. The words are API.
const (
	operationHeld      = "InFlight"    // a process drives it
	operationLeft      = "Left"        // no process holds the Lease
	operationForgotten = "Forgotten"   // ended by hand, and its holder has not seen it yet
	operationBroken    = "NotReplayed" // it cannot be read, or was written into another Lease
)

// operationsReport is the JSON output. Its names are API.
type operationsReport struct {
	Version    int               `json:"version"`
	Driver     string            `json:"driver"`
	Namespace  string            `json:"namespace"`
	Operations []operationReport `json:"operations"`
}

type operationReport struct {
	Lease  string `json:"lease"`
	State  string `json:"state"`
	Holder string `json:"holder,omitempty"`
	// AgeSeconds is since when the Lease says the operation, or since it was taken over.
	AgeSeconds int64  `json:"ageSeconds"`
	Claim      string `json:"claim,omitempty"` // namespace/name
	ClaimUID   string `json:"claimUID,omitempty"`
	Volume     string `json:"volume,omitempty"`
	Node       string `json:"node,omitempty"`
	// LastAnswer is the newest Warning of the claim.
	LastAnswer string `json:"lastAnswer,omitempty"`
	// Problem is why it is not replayed.
	Problem string `json:"problem,omitempty"`
}

func operationReportOf(record operations.Record, now time.Time) operationReport {
	r := operationReport{Lease: record.Lease.Name, State: operationLeft}
	if record.Lease.Spec.HolderIdentity != nil {
		r.Holder = *record.Lease.Spec.HolderIdentity
	}
	if since := record.Since(); !since.IsZero() {
		r.AgeSeconds = int64(now.Sub(since) / time.Second)
	}
	if op := record.Operation; op != nil {
		r.Claim, r.ClaimUID = op.Claim.Namespace+"/"+op.Claim.Name, string(op.Claim.UID)
		r.Volume, r.Node = op.VolumeName, op.Node
	}
	switch {
	case record.Err != nil:
		r.State, r.Problem = operationBroken, record.Err.Error()
	case record.Forgotten:
		r.State = operationForgotten
	case r.Holder != "":
		r.State = operationHeld
	}
	return r
}

// data implements answer.
func (r operationsReport) data() (any, error) {
	r.Version = reportVersion
	return r, nil
}

// maxAnswerBytes is how much of the last answer a row of the table shows.
const maxAnswerBytes = 80

// writeText prints the report for people.
func (r operationsReport) writeText(w io.Writer) error {
	var b strings.Builder
	if len(r.Operations) == 0 {
		fmt.Fprintf(&b, "No operation of driver %s is recorded in namespace %s.\n", r.Driver, r.Namespace)
	} else {
		table := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
		fmt.Fprintln(table, "LEASE\tSTATE\tAGE\tCLAIM\tVOLUME\tLAST ANSWER")
		for _, op := range r.Operations {
			last := op.LastAnswer
			if op.Problem != "" {
				last = op.Problem
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", op.Lease, op.State, duration.HumanDuration(time.Duration(op.AgeSeconds)*time.Second),
				orNone(op.Claim), orNone(op.Volume), orNone(text.Cut(last, maxAnswerBytes)))
		}
		_ = table.Flush() // a strings.Builder takes everything
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return nil
}
