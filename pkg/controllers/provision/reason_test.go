package provision

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// reasons is the set that the guide has.
var reasons = []reason{
	"ClassMissing", "Refused", "SourceNotReady", "NoTopology", "NodeGone", "SecretNotReady", "AttributesClassNotReady", "NotMarked",
	"InvalidRequest", "NoRoom", "Busy", "Deadline", "DriverUnavailable", "DriverError", "BadVolume", "NotSaved",
}

// Every code that gRPC can name has a row, so that a new one cannot slip by.
func TestEveryAnswerHasAReason(t *testing.T) {
	t.Parallel()
	for code := codes.OK + 1; code.String() != fmt.Sprintf("Code(%d)", code); code++ {
		if _, ok := answers[code]; !ok {
			t.Errorf("no row for %s", code)
		}
		if got := reasonOf(outcome.With(outcome.OfCreate(status.Error(code, ""), false), status.Error(code, ""))); !slices.Contains(reasons, got) {
			t.Errorf("%s: reason %q is not in the set", code, got)
		}
	}
	for want, err := range map[reason]error{
		reasonNoRoom:   status.Error(codes.ResourceExhausted, ""),
		reasonBusy:     status.Error(codes.Aborted, ""),
		reasonDeadline: status.Error(codes.DeadlineExceeded, ""),
		reasonAway:     outcome.With(outcome.Unchanged, status.Error(codes.Unavailable, "")),
		reasonInvalid:  fmt.Errorf("wrapped: %w", status.Error(codes.OutOfRange, "")),
		reasonDriver:   errors.New("no status"),
	} {
		if got := reasonOf(err); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
	if got := reasonOf(status.Error(codes.Code(99), "odd")); got != reasonDriver {
		t.Errorf("a code out of range: %s", got)
	}
}

// The reason that was given first stays, and the error says and means what it did.
func TestBecauseChangesNothingElse(t *testing.T) {
	t.Parallel()
	cause := status.Error(codes.InvalidArgument, "odd size")
	err := because(reasonPlace, fmt.Errorf("more: %w", because(reasonNodeGone, outcome.With(outcome.Background, cause))))
	if reasonOf(err) != reasonNodeGone || outcome.Of(err) != outcome.Background || outcome.Code(err) != codes.InvalidArgument || !errors.Is(err, cause) {
		t.Errorf("%v: reason %s, outcome %s, code %s", err, reasonOf(err), outcome.Of(err), outcome.Code(err))
	}
	if want := "more: " + cause.Error(); err.Error() != want {
		t.Errorf("text %q, want %q", err, want)
	}
	if because(reasonPlace, nil) != nil {
		t.Error("nil became an error")
	}
}

// Every refusal of a plan has the reason of its step.
func TestEveryRefusalHasItsReason(t *testing.T) {
	t.Parallel()
	want := map[string]reason{
		"the source cannot be told": reasonSource, "the grants cannot be read": reasonSource, "the source is not granted": reasonSource,
		"the snapshot is missing": reasonSource, "there is no place": reasonPlace,
		"the VolumeAttributesClass cannot be read": reasonAttributes, "the VolumeAttributesClass is another driver's": reasonAttributes,
	}
	for _, f := range faults() {
		s := goodSituation()
		f.spoil(s)
		_, err := MakePlan(s.Facts, s.Settings)
		wanted, ok := want[f.name]
		if !ok {
			wanted = reasonRefused
		}
		if got := reasonOf(err); got != wanted {
			t.Errorf("%s (%v): %s, want %s", f.name, err, got, wanted)
		}
	}
	for _, step := range steps {
		if !slices.Contains(reasons, step.refusal) {
			t.Errorf("%s: reason %q is not in the set", step.name, step.refusal)
		}
	}
	for _, outstanding := range []bool{false, true} {
		s := goodSituation()
		s.Facts.RequirementErr, s.Facts.Outstanding = fmt.Errorf("node n: %w", topology.ErrNodeGone), outstanding
		if _, err := MakePlan(s.Facts, s.Settings); reasonOf(err) != reasonNodeGone {
			t.Errorf("outstanding %v: %s", outstanding, reasonOf(err))
		}
	}
}
