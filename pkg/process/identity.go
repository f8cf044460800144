package process

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
)

// ServiceAccountDir is where a pod finds its namespace and its token.
const ServiceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// LeaseName returns the name of the lease for a lock: "/" and every other character outside [a-zA-Z0-9-]
// becomes "-", and a name that then ends in "-" gets an "X". Replicas of other versions exclude each other
// only through this name.
func LeaseName(lock string) string {
	var b strings.Builder
	for _, r := range lock {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			b.WriteRune(r)
		} else {
			b.WriteByte('-')
		}
	}
	name := b.String()
	if strings.HasSuffix(name, "-") {
		name += "X"
	}
	return name
}

// EventComponent returns the source of leader-election events: the lock before sanitising and the pod. It does not name
// the process: events of a pod's containers are counted together.
func EventComponent(lock, pod string) string { return lock + "/" + pod }

// PodName returns the first part of the holder identity: the first of the three that is not empty, sanitised like a lease
// name. podName is the environment's, tokenPod the one of the bound service-account token. In ordinary pods all three
// agree; with host networking or a fixed hostname only the first two tell replicas apart.
func PodName(podName, tokenPod, hostname string) string {
	for _, name := range []string{podName, tokenPod, hostname} {
		if name != "" {
			return LeaseName(name)
		}
	}
	return ""
}

// LeaseNamespace returns the first of the three that is not empty, and else "default": the flag's value, the
// environment's POD_NAMESPACE, the namespace of the service account.
func LeaseNamespace(flag, podNamespace, serviceAccount string) string {
	for _, namespace := range []string{flag, podNamespace, serviceAccount} {
		if namespace != "" {
			return namespace
		}
	}
	return "default"
}

// Pod is who a bound service-account token is for. Both are empty when it says nothing of a pod.
type Pod struct{ Name, UID string }

// ReadServiceAccount reads from dir the namespace of the service account and the pod that its token is bound to. What
// cannot be read is empty: outside a cluster there is neither. The token is not verified, since it only names this very
// process, and nothing of it is kept.
func ReadServiceAccount(dir string) (namespace string, pod Pod) {
	if text, err := os.ReadFile(filepath.Join(dir, "namespace")); err == nil { //nolint:gosec // a fixed path
		namespace = strings.TrimSpace(string(text))
	}
	if token, err := os.ReadFile(filepath.Join(dir, "token")); err == nil { //nolint:gosec // a fixed path
		pod = tokenPod(string(token))
	}
	return namespace, pod
}

// tokenPod returns the pod that a bound service-account token names.
func tokenPod(token string) Pod {
	parts := strings.Split(strings.TrimSpace(token), ".")
	if len(parts) != 3 {
		return Pod{}
	}
	payload, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	if err != nil {
		return Pod{}
	}
	var claims struct {
		Kubernetes struct {
			Pod struct {
				Name string `json:"name"`
				UID  string `json:"uid"`
			} `json:"pod"`
		} `json:"kubernetes.io"`
	}
	if json.Unmarshal(payload, &claims) != nil {
		return Pod{}
	}
	return Pod(claims.Kubernetes.Pod)
}
