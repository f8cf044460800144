package main

import (
	"os"

	"github.com/csi-sidecars/external-provisioner/pkg/process"
)

// environment is everything outside of the command line that decides what the process does, read once.
type environment struct {
	kubeconfig   string // KUBECONFIG
	nodeName     string // NODE_NAME
	namespace    string // NAMESPACE
	podName      string // POD_NAME
	podNamespace string // POD_NAMESPACE
	maxProcs     string // GOMAXPROCS
	gc           string // GOGC
	memLimit     string // GOMEMLIMIT
	home         string // HOME
	inCluster    bool   // KUBERNETES_SERVICE_HOST is there
	hostname     string
	// Of the service account: its namespace and the pod that its token is bound to.
	accountNamespace, accountPod string
	// containerMemory is the container's memory limit in bytes; 0 for none.
	containerMemory int64
}

// readEnvironment reads it: variables by getenv, the service account's files from accountDir.
func readEnvironment(getenv func(string) string, accountDir string) environment {
	env := environment{
		kubeconfig:   getenv("KUBECONFIG"),
		nodeName:     getenv("NODE_NAME"),
		namespace:    getenv("NAMESPACE"),
		podName:      getenv("POD_NAME"),
		podNamespace: getenv("POD_NAMESPACE"),
		maxProcs:     getenv("GOMAXPROCS"),
		gc:           getenv("GOGC"),
		memLimit:     getenv("GOMEMLIMIT"),
		home:         getenv("HOME"),
		inCluster:    getenv("KUBERNETES_SERVICE_HOST") != "",

		containerMemory: readMemoryLimit(cgroupRoot),
	}
	if name, err := os.Hostname(); err == nil {
		env.hostname = name
	}
	env.accountNamespace, env.accountPod = process.ReadServiceAccount(accountDir)
	return env
}
