package main

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/controllers/provision"
	"github.com/csi-sidecars/external-provisioner/pkg/driver"
	"github.com/csi-sidecars/external-provisioner/pkg/operations"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// explainReport is an answer, in the terms of the controller.
type explainReport struct {
	Driver driver.Identity
	// Node is the node that is served; empty in central mode.
	Node string
	// Claim or Volume is the answer; the other is nil.
	Claim  *provision.ClaimExplanation
	Volume *provision.VolumeExplanation
}

// reportVersion is the format of the JSON output: names and meanings stay, more may be added.
const reportVersion = 1

// The JSON output. Its names are API; docs/troubleshooting.md explains them.
type (
	reportJSON struct {
		Version          int               `json:"version"`
		Object           reportObject      `json:"object"`
		Driver           reportDriver      `json:"driver"`
		Node             string            `json:"node,omitempty"`
		Answer           provision.Answer  `json:"answer"`
		Summary          string            `json:"summary"`
		Cause            string            `json:"cause,omitempty"`
		Checks           []reportCheck     `json:"checks"`
		Call             *reportCall       `json:"call,omitempty"`
		PersistentVolume *reportPV         `json:"persistentVolume,omitempty"`
		Finalizers       []reportFinalizer `json:"finalizers,omitempty"`
		Notes            []string          `json:"notes,omitempty"`
	}
	reportObject struct {
		Kind      string    `json:"kind"`
		Namespace string    `json:"namespace,omitempty"`
		Name      string    `json:"name"`
		UID       types.UID `json:"uid,omitempty"`
	}
	reportDriver struct {
		Name         string   `json:"name"`
		Capabilities []string `json:"capabilities"`
	}
	reportCheck struct {
		Stage  string           `json:"stage"`
		Name   string           `json:"name"`
		Result provision.Result `json:"result"`
		Cause  string           `json:"cause,omitempty"`
	}
	reportCall struct {
		Method  string          `json:"method"`
		Request json.RawMessage `json:"request"`
		// Secret is whose values come along; the request does not show them.
		Secret *reportSecret `json:"secret,omitempty"`
	}
	reportSecret struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	}
	reportPV struct {
		Name    string                   `json:"name"`
		Secrets map[string]*reportSecret `json:"secrets,omitempty"`
	}
	reportFinalizer struct {
		Action    string       `json:"action"`
		Object    reportObject `json:"object"`
		Finalizer string       `json:"finalizer"`
	}
)

// json returns the report in the form that it is printed in.
func (r *explainReport) json() (reportJSON, error) {
	j := reportJSON{Version: reportVersion, Driver: reportDriver{Name: r.Driver.Name, Capabilities: capabilityNames(r.Driver)}, Node: r.Node}
	if r.Volume != nil {
		return j, r.volumeJSON(&j)
	}
	return j, r.claimJSON(&j)
}

func (r *explainReport) claimJSON(j *reportJSON) (err error) {
	e := r.Claim
	j.Object = reportObject{Kind: wellknown.KindClaim, Namespace: e.Claim.Namespace, Name: e.Claim.Name, UID: e.Claim.UID}
	j.take(e.Explanation)
	if e.Plan == nil {
		return nil
	}
	j.PersistentVolume = &reportPV{Name: e.Plan.Request.GetName(), Secrets: pvSecrets(e.Plan.Secrets)}
	if ref := e.Plan.Source; e.SourceFinalizer != "" && !e.SourceProtected {
		j.Finalizers = append(j.Finalizers, reportFinalizer{
			Action: "add", Object: reportObject{Kind: ref.KindName, Namespace: ref.Namespace, Name: ref.Name}, Finalizer: e.SourceFinalizer,
		})
	}
	j.Call, err = createJSON(e.Plan.Request, e.Plan.Secrets.Provisioner)
	return err
}

func (r *explainReport) volumeJSON(j *reportJSON) (err error) {
	e := r.Volume
	j.Object = reportObject{Kind: "PersistentVolume", Name: e.PV.Name, UID: e.PV.UID}
	j.take(e.Explanation)
	action := map[volume.FinalizerChange]string{volume.AddFinalizer: "add", volume.RemoveFinalizer: "remove"}[e.Finalizer]
	if action != "" {
		j.Finalizers = append(j.Finalizers, reportFinalizer{Action: action, Object: j.Object, Finalizer: wellknown.FinalizerPV})
	}
	if e.Request != nil {
		j.Call, err = deleteJSON(e.Request, e.Secret)
	}
	return err
}

// take fills in what all explanations have; Object is there.
func (j *reportJSON) take(e provision.Explanation) {
	j.Answer, j.Notes = e.Answer, e.Notes
	j.Summary = fmt.Sprintf(summaries[e.Answer], j.Object, j.Driver.Name)
	j.Checks = make([]reportCheck, 0, len(e.Checks))
	for _, check := range e.Checks {
		j.Checks = append(j.Checks, reportCheck(check))
		j.Cause += check.Cause // of the one that failed
	}
}

// summaries say each answer about an object and a driver.
var summaries = map[provision.Answer]string{
	provision.AnswerCreate:  "%s would be provisioned now: driver %s gets a CreateVolume call.",
	provision.AnswerResume:  "%s is being provisioned or was when an earlier process ended: driver %s gets this CreateVolume call, again if need be.",
	provision.AnswerCompete: "%s would be provisioned by the node that wins it: driver %s gets this CreateVolume call if this node does.",
	provision.AnswerRefuse:  "%s would be tried now, and fail before driver %s is called.",
	provision.AnswerNothing: "%s is left alone now by driver %s.",
	provision.AnswerDelete:  "%s would be deleted now: driver %s gets a DeleteVolume call.",
	provision.AnswerWait:    "%s is to be deleted, but still attached: driver %s gets this DeleteVolume call later.",
}

// String names the object for people.
func (o reportObject) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return "Claim " + o.Namespace + "/" + o.Name
}

// createJSON and deleteJSON show a request in the JSON form of protobuf.
func createJSON(request *csi.CreateVolumeRequest, secret *corev1.SecretReference) (*reportCall, error) {
	text, err := operations.MarshalRequest(request)
	if err != nil {
		return nil, fmt.Errorf("print the request of CreateVolume: %w", err)
	}
	return &reportCall{Method: "CreateVolume", Request: text, Secret: secretJSON(secret)}, nil
}

func deleteJSON(request *csi.DeleteVolumeRequest, secret *corev1.SecretReference) (*reportCall, error) {
	text, err := json.Marshal(map[string]string{"volumeId": request.GetVolumeId()})
	if err != nil {
		return nil, fmt.Errorf("print the request of DeleteVolume: %w", err)
	}
	return &reportCall{Method: "DeleteVolume", Request: text, Secret: secretJSON(secret)}, nil
}

func secretJSON(ref *corev1.SecretReference) *reportSecret {
	if ref == nil {
		return nil
	}
	return &reportSecret{Namespace: ref.Namespace, Name: ref.Name}
}

// pvSecrets are the secrets that the PersistentVolume will name, by their field.
func pvSecrets(refs volume.SecretRefs) map[string]*reportSecret {
	all := map[string]*reportSecret{}
	for use, ref := range map[string]*corev1.SecretReference{
		"controllerPublish": refs.ControllerPublish, "nodeStage": refs.NodeStage, "nodePublish": refs.NodePublish,
		"controllerExpand": refs.ControllerExpand, "nodeExpand": refs.NodeExpand, "controllerModify": refs.ControllerModify,
		"deletion": refs.Provisioner,
	} {
		if ref != nil {
			all[use] = secretJSON(ref)
		}
	}
	return all
}

// capabilityNames lists what the driver has, as --capabilities takes it, sorted.
func capabilityNames(id driver.Identity) []string {
	names := []string{}
	for c := range id.Plugin {
		names = append(names, c.String())
	}
	for c := range id.Controller {
		names = append(names, c.String())
	}
	slices.Sort(names)
	return names
}

// data implements answer.
func (r *explainReport) data() (any, error) {
	j, err := r.json()
	return j, err
}
