package cluster

import (
	"fmt"
	"hash/fnv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/client-go/tools/reference"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/text"
)

// Recorder records events of one component, with messages of at most 1 KiB of valid UTF-8. Its methods never block and may be called concurrently.
type Recorder struct {
	events    *Events
	component string
	mirror    bool
}

var _ record.EventRecorder = (*Recorder)(nil)

// Recorder returns a recorder whose events have this source. Each event is also logged.
func (e *Events) Recorder(component string) *Recorder {
	return &Recorder{events: e, component: component, mirror: true}
}

// QuietRecorder is Recorder without the log lines; for events of the lease, which are logged by who holds it.
func (e *Events) QuietRecorder(component string) *Recorder {
	return &Recorder{events: e, component: component}
}

// Event records an event on object, which may also be a *corev1.ObjectReference.
func (r *Recorder) Event(object runtime.Object, eventType, reason, message string) {
	r.AnnotatedEventf(object, nil, eventType, reason, "%s", message)
}

// Eventf is Event with a format.
func (r *Recorder) Eventf(object runtime.Object, eventType, reason, format string, args ...any) {
	r.AnnotatedEventf(object, nil, eventType, reason, format, args...)
}

// AnnotatedEventf is Eventf with annotations on the event.
//
//nolint:revive // record.EventRecorder has these arguments
func (r *Recorder) AnnotatedEventf(object runtime.Object, annotations map[string]string, eventType, reason, format string, args ...any) {
	logger, message := r.events.logger, text.Cut(fmt.Sprintf(format, args...), maxEventBytes)
	ref, err := reference.GetReference(scheme.Scheme, object)
	if err != nil {
		logger.Error(err, "Event has no object to be about", "reason", reason, "message", message)
		return
	}
	if !util.ValidateEventType(eventType) {
		logger.Error(nil, "Event has an unknown type", "type", eventType, "reason", reason)
		return
	}
	now := metav1.Now()
	namespace := ref.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Annotations: annotations},
		InvolvedObject: *ref,
		Reason:         reason, Message: message, Type: eventType,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: r.component}, ReportingController: r.component,
	}
	event.Name = eventName(event)
	if r.mirror {
		logger.Info("Event occurred", "object", klog.KRef(ref.Namespace, ref.Name), "fieldPath", ref.FieldPath,
			"kind", ref.Kind, "apiVersion", ref.APIVersion, "type", eventType, "reason", reason, "message", message)
	}
	r.events.add(event)
}

// eventName names an event by what it tells of which object: who tells the same again, also after a restart, finds it.
// client-go's names are unique by their time.
func eventName(event *corev1.Event) string {
	hash := fnv.New64a()
	for _, part := range []string{
		event.Source.Component, event.InvolvedObject.Kind, string(event.InvolvedObject.UID), event.InvolvedObject.FieldPath,
		event.Type, event.Reason, event.Message,
	} {
		_, _ = hash.Write([]byte(part))
		_, _ = hash.Write([]byte{0})
	}
	return util.GenerateEventName(event.InvolvedObject.Name, int64(hash.Sum64()>>1)) // one bit less, so that it fits
}
