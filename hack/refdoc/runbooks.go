package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// RunbookURL is where the rules say that a runbook is; the alert's name in lower case follows.
const RunbookURL = "https://github.com/csi-sidecars/external-provisioner/blob/main/docs/runbooks.md#"

// Runbooks returns the page with one heading for each alert. An alert whose runbook_url does not lead to its heading is
// an error.
func Runbooks(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, "deploy", "monitoring", "csi-provisioner.rules.yaml"))
	if err != nil {
		return "", err
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr         string
				For                 string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("# Runbooks\n\n" + generated + "One section for each alert of `deploy/monitoring/csi-provisioner.rules.yaml`.\n")
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			if rule.Alert == "" {
				continue
			}
			if want := RunbookURL + strings.ToLower(rule.Alert); rule.Annotations["runbook_url"] != want {
				return "", fmt.Errorf("the runbook_url of %s is %q, want %q", rule.Alert, rule.Annotations["runbook_url"], want)
			}
			after := ""
			if rule.For != "" {
				after = ", after " + rule.For
			}
			fmt.Fprintf(&b, "\n## %s\n\n%s (%s%s)\n\n%s\n\n```promql\n%s\n```\n", rule.Alert, rule.Annotations["summary"], rule.Labels["severity"], after,
				rule.Annotations["runbook"], strings.TrimSpace(rule.Expr))
		}
	}
	return b.String(), nil
}
