package main

import (
	"cmp"
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
	accountNamespace string
	accountPod       process.Pod
	// containerMemory is the container's memory limit in bytes; 0 for none.
	containerMemory int64
	// What standard variables of OpenTelemetry say that its SDK does not read itself. Without traces they mean nothing.
	otlpHeaders     string // OTEL_EXPORTER_OTLP_TRACES_HEADERS, else OTEL_EXPORTER_OTLP_HEADERS
	otlpCertificate string // OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE, else OTEL_EXPORTER_OTLP_CERTIFICATE
	traceSampler    string // OTEL_TRACES_SAMPLER
	traceSamplerArg string // OTEL_TRACES_SAMPLER_ARG
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

		otlpHeaders:     cmp.Or(getenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS"), getenv("OTEL_EXPORTER_OTLP_HEADERS")),
		otlpCertificate: cmp.Or(getenv("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE"), getenv("OTEL_EXPORTER_OTLP_CERTIFICATE")),
		traceSampler:    getenv("OTEL_TRACES_SAMPLER"),
		traceSamplerArg: getenv("OTEL_TRACES_SAMPLER_ARG"),

		containerMemory: readMemoryLimit(cgroupRoot),
	}
	if name, err := os.Hostname(); err == nil {
		env.hostname = name
	}
	env.accountNamespace, env.accountPod = process.ReadServiceAccount(accountDir)
	return env
}
