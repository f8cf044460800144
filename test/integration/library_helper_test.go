package integration

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	library "sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/csi-sidecars/external-provisioner/pkg/controllers/provision"
	"github.com/csi-sidecars/external-provisioner/pkg/driver"
	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	controlplane "github.com/csi-sidecars/external-provisioner/test/cluster"
)

// underLibrary is our Provision function for the library's controller: the same plans, the same calls, the same
// PersistentVolumes, under a loop that is not ours.
type underLibrary struct {
	driver   *driver.Driver
	client   kubernetes.Interface
	settings provision.Settings
	recorder record.EventRecorder
}

var (
	_ library.Provisioner      = (*underLibrary)(nil)
	_ library.BlockProvisioner = (*underLibrary)(nil)
)

func (u *underLibrary) SupportsBlock(context.Context) bool { return true }

func (u *underLibrary) Provision(ctx context.Context, o library.ProvisionOptions) (*corev1.PersistentVolume, library.ProvisioningState, error) {
	facts := provision.Facts{Claim: o.PVC, Class: o.StorageClass, Translated: o.StorageClass, SelectedNode: o.SelectedNodeName, Granted: true}
	facts.Source, facts.SourceErr = source.Of(o.PVC, false)
	plan, err := provision.MakePlan(facts, u.settings)
	if outcome.Of(err) == outcome.NotOurs {
		u.recorder.Event(o.PVC, corev1.EventTypeNormal, "Provisioning", "Assuming an external populator will provision the volume")
		return nil, library.ProvisioningFinished, &library.IgnoredError{Reason: err.Error()}
	}
	if err != nil {
		return nil, stateOf(outcome.Of(err)), err
	}
	response, err := u.driver.CreateVolume(ctx, plan.Request)
	if err != nil {
		return nil, stateOf(outcome.OfCreate(err, plan.Reschedulable)), err
	}
	return volume.BuildPV(volume.PVInput{
		Name: plan.Request.GetName(), Driver: u.settings.Driver, ProvisionedBy: o.StorageClass.Provisioner, Claim: o.PVC,
		ClassName: o.StorageClass.Name, ReclaimPolicy: o.StorageClass.ReclaimPolicy, MountOptions: o.StorageClass.MountOptions,
		FSType: plan.FSType, Secrets: plan.Secrets, Request: plan.Request, Volume: response.GetVolume(),
	}), library.ProvisioningFinished, nil
}

func stateOf(o outcome.Outcome) library.ProvisioningState {
	switch o {
	case outcome.Background:
		return library.ProvisioningInBackground
	case outcome.Reschedule:
		return library.ProvisioningReschedule
	case outcome.Unchanged:
		return library.ProvisioningNoChange
	case outcome.Done, outcome.Failed, outcome.NotOurs:
	}
	return library.ProvisioningFinished
}

func (u *underLibrary) Delete(ctx context.Context, pv *corev1.PersistentVolume) error {
	attachments, err := u.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, attachment := range attachments.Items {
		if name := attachment.Spec.Source.PersistentVolumeName; name != nil && *name == pv.Name {
			return &library.VolumeInUseError{Reason: "persistentvolume " + pv.Name + " is still attached to node " + attachment.Spec.NodeName}
		}
	}
	return u.driver.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: pv.Spec.CSI.VolumeHandle})
}

// stage is one of the two loops with a driver of its own.
type stage struct {
	*ground
	claim *corev1.PersistentVolumeClaim
	// runLibrary starts the library's loop; nil when it is ours that runs.
	runLibrary func()
	// release lets a call go on that a behaviour holds; nil when none does.
	release func()
}

func (s *stage) isOurs() bool { return s.runLibrary == nil }

// newLibrary makes the library's controller, with the back-off that ours has in these tests, and returns what runs it.
// The constructor writes client-go's global scheme: nothing else may use a client meanwhile.
func (g *ground) newLibrary(topology bool) (run func()) {
	g.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(g.Context()))
	g.Cleanup(cancel)
	d, err := driver.Connect(ctx, driver.Config{Address: g.driver.Socket(), Timeout: callTimeout})
	if err != nil {
		g.Fatal(err)
	}
	g.Cleanup(d.Close)
	config := controlplane.Shared(g.T).Config()
	// The library's recorder goes on for ever; what it does after the test is nobody's business.
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if ctx.Err() != nil {
				return nil, errors.New("the test is over")
			}
			return next.RoundTrip(r)
		})
	})
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		g.Fatal(err)
	}
	controller := library.NewProvisionController(ctx, client, g.ns, &underLibrary{
		driver: d, client: client, recorder: g.events.Recorder(wellknown.EventComponent),
		settings: provision.Settings{
			Driver: g.ns, VolumeNamePrefix: "pvc", VolumeNameUUIDLength: -1,
			Capabilities: provision.Capabilities{ControllerService: true, CreateDeleteVolume: true, Topology: topology},
		},
	}, library.LeaderElection(false), library.Threadiness(10), library.AddFinalizer(true),
		library.FailedProvisionThreshold(0), library.FailedDeleteThreshold(0),
		library.CreateProvisionedPVLimiter(workqueue.DefaultTypedControllerRateLimiter[string]()),
		library.RateLimiter(workqueue.NewTypedItemExponentialFailureRateLimiter[string](20*time.Millisecond, 200*time.Millisecond)),
	)
	return func() {
		ended := make(chan struct{})
		go func() { controller.Run(ctx); close(ended) }()
		g.Cleanup(func() { cancel(); <-ended })
	}
}

// story is what can be seen of a loop from outside.
type story struct {
	// ClaimEvents and PVEvents are the types and reasons, each once, sorted. What kube-controller-manager says is left out.
	ClaimEvents, PVEvents []string
	// Requests are the different CreateVolume requests, with the UID of the claim taken out.
	Requests []*csi.CreateVolumeRequest
	// Creates counts the calls for the claim, Deletes the volumes that were deleted.
	Creates, Deletes int
	// Claim is "gone", "bound", "pending", with the node that is selected if any. PV says whether there is one.
	Claim string
	PV    bool
	// Volumes is how many there are at the end.
	Volumes int
}

func (s *stage) story() story {
	s.Helper()
	uid := string(s.claim.UID)
	pvName := "pvc-" + uid
	st := story{Volumes: len(s.driver.Volumes()), PV: s.pv(pvName) != nil}
	st.ClaimEvents = s.reasons(s.ns, "involvedObject.uid="+uid)
	st.PVEvents = s.reasons("default", "involvedObject.name="+pvName)
	deleted := map[string]int{}
	for _, call := range s.driver.Calls("DeleteVolume") {
		if call.Code == codes.OK {
			deleted[call.Key]++
		}
	}
	st.Deletes = len(deleted)
	for id, n := range deleted {
		// The library deletes some volumes twice, as it is known to.
		if n > 1 && s.runLibrary == nil {
			s.Errorf("volume %s was deleted %d times", id, n)
		}
	}
	for _, call := range s.driver.Calls("CreateVolume") {
		if call.Key != pvName {
			continue
		}
		st.Creates++
		request, ok := proto.Clone(call.Create()).(*csi.CreateVolumeRequest)
		if !ok {
			s.Fatalf("request %v", call.Request)
		}
		request.Name = strings.ReplaceAll(request.GetName(), uid, "UID")
		if !slices.ContainsFunc(st.Requests, func(other *csi.CreateVolumeRequest) bool { return proto.Equal(request, other) }) {
			st.Requests = append(st.Requests, request)
		}
	}
	claim := s.live("c")
	switch {
	case claim == nil:
		st.Claim = "gone"
	case claim.Status.Phase == corev1.ClaimBound:
		st.Claim = "bound"
	default:
		st.Claim = strings.TrimSpace("pending " + claim.Annotations[wellknown.AnnSelectedNode])
	}
	return st
}

func (s *stage) reasons(namespace, selector string) []string {
	s.Helper()
	list, err := s.clients.Core.CoreV1().Events(namespace).List(s.Context(), metav1.ListOptions{FieldSelector: selector})
	if err != nil && !apierrors.IsNotFound(err) {
		s.Fatal(err)
	}
	var reasons []string
	for _, event := range list.Items {
		if event.Source.Component != "persistentvolume-controller" {
			reasons = append(reasons, event.Type+" "+event.Reason)
		}
	}
	slices.Sort(reasons)
	return slices.Compact(reasons)
}
