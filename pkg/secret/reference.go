package secret

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// Names is what templates may speak of.
type Names struct {
	// PVName is the name of the PersistentVolume, which is the name in the CreateVolume request too.
	PVName string
	// ClaimName and ClaimNamespace are the claim's.
	ClaimName, ClaimNamespace string
	// ClaimAnnotations are the claim's annotations; only read. With nil every use of an annotation is an
	// error, which is right where the claim is no longer there.
	ClaimAnnotations map[string]string
}

// ErrNoAnnotation says that the name of a Secret is made from an annotation that the claim does not have.
var ErrNoAnnotation = errors.New("an annotation of the claim is missing")

// Resolve returns the Secret that parameters name for c, or nil when they name none: the pair of the consumer,
// else the default pair. Nothing is read, so the Secret need not exist. An error means that the class must be
// changed, or the claim when it is ErrNoAnnotation; it carries no outcome, so the work is tried again.
// Errors quote templates and what they resolved to. The inputs are only read; calls may run concurrently.
func Resolve(c Consumer, parameters map[string]string, n Names) (*corev1.SecretReference, error) {
	t, found, err := templates(c, parameters)
	if err == nil && !found {
		c = defaults
		t, found, err = templates(c, parameters)
	}
	if err != nil || !found {
		return nil, err
	}
	// The namespace first: it is the boundary that keeps a claim's author away from other people's Secrets.
	namespace, err := expandNamespace(t.namespace, n)
	if err != nil {
		return nil, fmt.Errorf("namespace of the %s secret: %w", c, err)
	}
	name, err := expandName(t.name, n)
	if err != nil {
		return nil, fmt.Errorf("name of the %s secret: %w", c, err)
	}
	return &corev1.SecretReference{Name: name, Namespace: namespace}, nil
}

// pair holds the two templates that a class has for one consumer.
type pair struct {
	name, namespace string
}

// templates returns the consumer's pair and whether there is one. A key counts by being there, also when empty.
func templates(c Consumer, parameters map[string]string) (pair, bool, error) {
	name, hasName, err := oneOf(c, parameters, c.deprecatedName, c.nameKey)
	if err != nil {
		return pair{}, false, err
	}
	namespace, hasNamespace, err := oneOf(c, parameters, c.deprecatedNamespace, c.namespaceKey)
	if err != nil {
		return pair{}, false, err
	}
	switch {
	case !hasName && !hasNamespace:
		return pair{}, false, nil
	case !hasNamespace:
		return pair{}, false, fmt.Errorf("%s secret: the class gives a name but no namespace (%s), both must be specified", c, c.namespaceKey)
	case !hasName:
		return pair{}, false, fmt.Errorf("%s secret: the class gives a namespace but no name (%s), both must be specified", c, c.nameKey)
	case name == "" || namespace == "":
		return pair{}, false, fmt.Errorf("%s secret: the class gives an empty value for name or namespace, both must be specified and not empty", c)
	}
	return pair{name: name, namespace: namespace}, true, nil
}

// oneOf returns the value of whichever of the two keys is there; an empty key is never looked up.
func oneOf(c Consumer, parameters map[string]string, deprecated, key string) (value string, found bool, err error) {
	var old string
	var hasOld, hasNew bool
	if deprecated != "" {
		old, hasOld = parameters[deprecated]
	}
	if key != "" {
		value, hasNew = parameters[key]
	}
	switch {
	case hasOld && hasNew:
		return "", false, fmt.Errorf("%s secret: specified twice, with %q and with %q", c, deprecated, key)
	case hasOld:
		return old, true, nil
	}
	return value, hasNew, nil
}
