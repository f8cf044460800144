package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"
)

// logged returns a context whose log lines, up to verbosity, can be read back as text.
func logged(t *testing.T, verbosity int) (context.Context, func() string) {
	t.Helper()
	var mu sync.Mutex
	var lines strings.Builder
	logger := funcr.New(func(prefix, args string) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintln(&lines, prefix, args)
	}, funcr.Options{Verbosity: verbosity})
	return klog.NewContext(t.Context(), logger), func() string {
		mu.Lock()
		defer mu.Unlock()
		return lines.String()
	}
}

// kubeconfig writes a file whose only cluster has this server; without a context of its own it needs another file.
func kubeconfig(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte("apiVersion: v1\nkind: Config\n"+content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func whole(server string) string {
	return clusterPart(server) + contextPart
}

func clusterPart(server string) string {
	return fmt.Sprintf("clusters: [{name: c, cluster: {server: %q}}]\n", server)
}

const contextPart = "contexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\n"

func TestRESTConfigFindsTheServer(t *testing.T) {
	t.Parallel()
	one := kubeconfig(t, "one", whole("https://one"))
	list := []string{
		kubeconfig(t, "part", clusterPart("https://list")), filepath.Join(t.TempDir(), "missing"), kubeconfig(t, "rest", contextPart),
	}
	for name, tc := range map[string]struct {
		from Address
		want string
	}{
		"one file":                                 {Address{Kubeconfigs: []string{one}}, "https://one"},
		"a list of files is merged":                {Address{Kubeconfigs: list}, "https://list"},
		"the master alone":                         {Address{Master: "https://master"}, "https://master"},
		"the master replaces the server of a file": {Address{Kubeconfigs: []string{one}, Master: "https://master"}, "https://master"},
		"the master replaces the server of a list": {Address{Kubeconfigs: list, Master: "https://master"}, "https://master"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config, err := RESTConfig(t.Context(), tc.from)
			if err != nil {
				t.Fatal(err)
			}
			if config.Host != tc.want {
				t.Errorf("server %q, want %q", config.Host, tc.want)
			}
		})
	}
}

func TestRESTConfigTakesContextAndUser(t *testing.T) {
	t.Parallel()
	two := kubeconfig(t, "two", `clusters: [{name: c, cluster: {server: "https://c"}}, {name: d, cluster: {server: "https://d"}}]
contexts: [{name: x, context: {cluster: c}}, {name: z, context: {cluster: d, namespace: mine}}]
current-context: x
`)
	from := Address{Kubeconfigs: []string{two}, Context: "z", As: "jane"}
	config, err := RESTConfig(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	namespace, err := Namespace(t.Context(), from)
	if config.Host != "https://d" || config.Impersonate.UserName != "jane" || namespace != "mine" || err != nil {
		t.Errorf("server %q, user %q, namespace %q, %v, want those of context z and jane", config.Host, config.Impersonate.UserName, namespace, err)
	}
}

func TestRESTConfigSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		from Address
		want string
	}{
		"nothing outside of a cluster": {Address{}, "in-cluster configuration"},
		"a missing file":               {Address{Kubeconfigs: []string{"/does/not/exist"}}, "/does/not/exist"},
		"a list of missing files":      {Address{Kubeconfigs: []string{"/a", "/b"}}, "/a:/b"},
		"a context that is not there":  {Address{Kubeconfigs: []string{kubeconfig(t, "whole", whole("https://h"))}, Context: "nosuch"}, `context "nosuch"`},
		"a context of no file":         {Address{Context: "x"}, "--kubeconfig"},
		"a file that is no kubeconfig": {Address{Kubeconfigs: []string{kubeconfig(t, "bad", ":::")}}, "bad"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := RESTConfig(t.Context(), tc.from)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v does not mention %q", err, tc.want)
			}
		})
	}
}

func TestNamespaceIsThatOfTheContext(t *testing.T) {
	t.Parallel()
	named := strings.ReplaceAll(contextPart, "{cluster: c}", "{cluster: c, namespace: mine}")
	for name, tc := range map[string]struct {
		kubeconfigs []string
		want        string // "" for an error
	}{
		"none without a kubeconfig":       {nil, "default"},
		"none in the context":             {[]string{kubeconfig(t, "plain", whole("https://h"))}, "default"},
		"one in the context":              {[]string{kubeconfig(t, "named", clusterPart("https://h")+named)}, "mine"},
		"of a context in the second file": {[]string{kubeconfig(t, "part", clusterPart("https://h")), kubeconfig(t, "rest", named)}, "mine"},
		"of a file that is not there":     {[]string{filepath.Join(t.TempDir(), "missing")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Namespace(t.Context(), Address{Kubeconfigs: tc.kubeconfigs})
			if got != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("%q, %v, want %q", got, err, tc.want)
			}
		})
	}
}
