package provision

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/nodelocal"
	"github.com/csi-sidecars/external-provisioner/pkg/operations"
	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// ErrNoObject says that the claim or PersistentVolume that is asked about does not exist.
var ErrNoObject = errors.New("not found")

// Answer is what the controller would do about an object now. The words are API.
type Answer string

// The answers about a claim, and those about a PersistentVolume.
const (
	// AnswerCreate: CreateVolume is called.
	AnswerCreate Answer = "create"
	// AnswerResume: CreateVolume is called again, because a create of this claim is not known to have ended.
	AnswerResume Answer = "resume"
	// AnswerCompete: this node competes with others for the claim, and the one that wins calls CreateVolume.
	AnswerCompete Answer = "compete"
	// AnswerRefuse: an attempt is made and fails before the driver is called.
	AnswerRefuse Answer = "refuse"
	// AnswerNothing: there is nothing to do for the object now, or it is another driver's.
	AnswerNothing Answer = "nothing"
	// AnswerDelete: DeleteVolume is called.
	AnswerDelete Answer = "delete"
	// AnswerWait: DeleteVolume is called when the volume is not attached any more.
	AnswerWait Answer = "wait"
)

// Result is how a check ended. The words are API.
type Result string

// The results. NotReached is for checks after the one that failed.
const (
	CheckPassed     Result = "passed"
	CheckFailed     Result = "failed"
	CheckNotReached Result = "notReached"
)

// Check is one check on the way to the answer.
type Check struct {
	// Stage is what the check belongs to, Name says what must be true.
	Stage, Name string
	Result      Result
	// Cause is why it failed; empty otherwise.
	Cause string
}

// Explanation is what the controller would do about an object now, and why.
type Explanation struct {
	Answer Answer
	// Checks are all that count for the answer, in their order.
	Checks []Check
	// Notes are what else there is to know: what happens before the call, and what follows it.
	Notes []string
}

// ClaimExplanation is an Explanation about a claim.
type ClaimExplanation struct {
	Explanation
	// Claim is what the question is about. Read-only.
	Claim *corev1.PersistentVolumeClaim
	// Plan is what would be carried out; nil when nothing would. Read-only.
	Plan *Plan
	// SourceFinalizer is put on Plan.Source before the call; empty for none. SourceProtected says that it is there.
	SourceFinalizer string
	SourceProtected bool
}

// The stages of a claim.
const (
	stageOperation = "operation"
	stageTurn      = "turn"
	stageNode      = "node"
	stageResume    = "resume"
	stagePlan      = "plan"
)

// ExplainClaim tells what the controller would do about the claim now, by the code that does it. It writes nothing, reads
// no secret, and calls the driver for the room on a node at most; of Config it needs no more than that code does. An error
// means that there is no answer: ErrNoObject is in its chain when there is no such claim, else something could not be
// read.
func (c *Controller) ExplainClaim(ctx context.Context, namespace, name string) (*ClaimExplanation, error) {
	// The cache keeps little of a claim that is nobody's yet, and people want to know what that one waits for.
	claim, err := c.cfg.Client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("claim %s/%s: %w", namespace, name, ErrNoObject)
	}
	if err != nil {
		return nil, fmt.Errorf("read claim %s/%s: %w", namespace, name, err)
	}
	e := &ClaimExplanation{Claim: claim}
	class := c.cfg.Cache.Class(volume.ClassName(claim))
	op, err := c.operationInFlight(ctx, claim)
	switch {
	case err != nil:
		e.notef("Whether a CreateVolume operation for the claim is in flight is not known: %v.", err)
	case op != nil:
		c.explainResume(e, *op)
		return e, nil
	}
	return e, c.explainTurn(ctx, e, class)
}

// operationInFlight returns the recorded operation of the claim, nil if there is none.
func (c *Controller) operationInFlight(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*operations.Operation, error) {
	if c.cfg.Operations == nil {
		return nil, nil //nolint:nilnil // nothing is recorded
	}
	records, err := operations.List(ctx, *c.cfg.Operations)
	if err != nil {
		return nil, err
	}
	for _, record := range records {
		if record.Operation != nil && record.Operation.Claim.UID == claim.UID {
			return record.Operation, nil
		}
	}
	return nil, nil //nolint:nilnil // none
}

// explainTurn is for a claim of which no create is outstanding.
func (c *Controller) explainTurn(ctx context.Context, e *ClaimExplanation, class *storagev1.StorageClass) error {
	e.stage(stageOperation, []string{"no CreateVolume operation is in flight or left unfinished"})
	e.reached(stageOperation, 1, "")
	e.stage(stageTurn, names(selectionChecks, func(t selectionCheck) string { return t.name }))
	if c.cfg.Node != nil {
		e.stage(stageNode, []string{"the claim is for this node", "the node has room, where nodes compete for the claim"})
	}
	e.stage(stagePlan, names(steps, func(s step) string { return s.name }))

	candidate := candidate{claim: e.Claim, class: class, existingPV: c.existingPV(e.Claim)}
	if i := c.cfg.Settings.passedChecks(candidate); i < len(selectionChecks) {
		e.reached(stageTurn, i, selectionChecks[i].detail(c.cfg.Settings, candidate))
		e.Answer = AnswerNothing
		c.noteNotSelected(e, selectionChecks[i].then)
		return nil
	}
	e.reached(stageTurn, len(selectionChecks), "")
	if c.cfg.Node == nil {
		return c.explainPlan(e, c.gather(ctx, e.Claim, class), AnswerCreate)
	}
	return c.explainNode(ctx, e, class)
}

// explainNode is for a claim that needs a volume, in node deployment.
func (c *Controller) explainNode(ctx context.Context, e *ClaimExplanation, class *storagev1.StorageClass) error {
	s, here := c.standTo(ctx, e.Claim, class), c.cfg.Node.name()
	switch s.verdict {
	case nodelocal.Owned:
		e.reached(stageNode, 2, "")
		return c.explainPlan(e, c.gather(ctx, e.Claim, class), AnswerCreate)
	case nodelocal.Compete:
		if c.cfg.Node.Room != nil && !c.hasRoom(ctx, e.Claim, class) {
			e.reached(stageNode, 1, "its driver answers GetCapacity with less than the claim asks for")
			e.Answer = AnswerNothing
			e.notef("The node asks again by itself.")
			return nil
		}
		e.reached(stageNode, 2, "")
		e.notef("No node is selected: after a wait the node asks its driver for the room (GetCapacity), and writes its name on the claim if there is enough and no other node was first.")
		return c.explainPlan(e, c.gatherFor(ctx, e.Claim, class, placement{node: here}), AnswerCompete)
	case nodelocal.NotOurs:
	}
	e.Answer = AnswerNothing
	switch selected := e.Claim.Annotations[wellknown.AnnSelectedNode]; {
	case selected != "":
		e.reached(stageNode, 0, fmt.Sprintf("its selected node is %q, and this is node %q", selected, here))
	case s.unreachable != nil:
		if unread(s.unreachable) {
			return fmt.Errorf("cannot tell whether node %q may have the volume: %w", here, s.unreachable)
		}
		e.reached(stageNode, 0, s.unreachable.Error())
	default:
		e.reached(stageNode, 0, "no node is selected, and nodes do not compete for the claims of its class")
	}
	return nil
}

// explainResume is for a claim whose operation is recorded.
func (c *Controller) explainResume(e *ClaimExplanation, op operations.Operation) {
	e.stage(stageOperation, []string{"a CreateVolume operation is in flight or was left unfinished"})
	e.reached(stageOperation, 1, "")
	e.stage(stageResume, []string{"no PersistentVolume stands for the volume yet", "the secrets are those that the class gives"})
	e.notef("The operation is recorded in a Lease. Nothing about the claim ends it, only the driver's answer, the PersistentVolume, or \"csi-provisioner operations forget\" does.")
	e.Answer = AnswerNothing
	if pv := c.volumeOf(e.Claim); pv != nil {
		e.reached(stageResume, 0, fmt.Sprintf("PersistentVolume %s does; the operation ends", pv.Name))
		return
	}
	if why := c.secretsChanged(op, e.Claim); why != "" {
		e.reached(stageResume, 1, why)
		e.Answer = AnswerRefuse
		e.notef("An earlier process's operation is not finished until that is as it was. Else look for the volume in the storage system, and end the operation with \"csi-provisioner operations forget\".")
		return
	}
	e.reached(stageResume, 2, "")
	e.Answer, e.Plan, e.SourceProtected = AnswerResume, planOf(op), true
	c.noteCall(e)
}

// explainPlan runs the steps of a plan; good is the answer when all pass.
func (c *Controller) explainPlan(e *ClaimExplanation, f Facts, good Answer) error {
	plan, passed, err := runSteps(f, c.cfg.Settings)
	if unread(err) {
		return fmt.Errorf("cannot tell whether %s: %w", steps[passed].name, err)
	}
	if err != nil {
		e.reached(stagePlan, passed, err.Error())
		e.Answer = AnswerRefuse
		if outcome.Of(err) == outcome.NotOurs {
			e.Answer = AnswerNothing
		}
		c.noteFailed(e, err)
		return nil
	}
	e.reached(stagePlan, passed, "")
	e.Answer, e.Plan = good, plan
	e.SourceFinalizer = sourceFinalizer(plan.Source.Kind)
	switch {
	case f.SourceClaim != nil:
		e.SourceProtected = has(f.SourceClaim.Finalizers, e.SourceFinalizer)
	case f.Snapshot != nil:
		e.SourceProtected = has(f.Snapshot.Finalizers, e.SourceFinalizer)
	}
	c.noteCall(e)
	return nil
}

// unread reports whether err means that something could not be read. That it is not there is an answer.
func unread(err error) bool {
	if err == nil || apierrors.IsNotFound(err) {
		return false
	}
	_, refused := errors.AsType[*apierrors.StatusError](err)
	_, unreachable := errors.AsType[*url.Error](err)
	return refused || unreachable || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// stage adds the checks of a stage, none of them reached.
func (e *Explanation) stage(stage string, names []string) {
	for _, name := range names {
		e.Checks = append(e.Checks, Check{Stage: stage, Name: name, Result: CheckNotReached})
	}
}

// reached says how far a stage came: so many checks passed, and the next one, if there is one, failed because of cause.
func (e *Explanation) reached(stage string, passed int, cause string) {
	for i := range e.Checks {
		if e.Checks[i].Stage != stage {
			continue
		}
		if passed == 0 {
			e.Checks[i].Result, e.Checks[i].Cause = CheckFailed, cause
			return
		}
		e.Checks[i].Result = CheckPassed
		passed--
	}
}

func (e *Explanation) notef(format string, args ...any) {
	e.Notes = append(e.Notes, fmt.Sprintf(format, args...))
}

func names[T any](list []T, name func(T) string) []string {
	all := make([]string, 0, len(list))
	for _, one := range list {
		all = append(all, name(one))
	}
	return all
}
