package deploy

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
)

// Object is one document of a manifest.
type Object struct {
	// File is the name of the manifest, without its folder.
	File string
	// Text is the document as it stands there.
	Text []byte
	*unstructured.Unstructured
}

// Folder returns the full name of a folder or file below the repository's deploy folder.
func Folder(tb testing.TB, names ...string) string {
	tb.Helper()
	root, err := cluster.RepoRoot()
	if err != nil {
		tb.Fatal(err)
	}
	return filepath.Join(append([]string{root, "deploy"}, names...)...)
}

// Read returns the content of a file below the deploy folder.
func Read(tb testing.TB, names ...string) []byte {
	tb.Helper()
	text, err := os.ReadFile(Folder(tb, names...))
	if err != nil {
		tb.Fatal(err)
	}
	return text
}

// Objects returns the documents of the manifests that match one of the patterns, in the order of patterns, file names
// and documents. A pattern without a file ends the test.
func Objects(tb testing.TB, patterns ...string) []Object {
	tb.Helper()
	var objects []Object
	for _, pattern := range patterns {
		files, err := filepath.Glob(Folder(tb, "kubernetes", pattern))
		if err != nil || len(files) == 0 {
			tb.Fatalf("no manifest %s: %v", pattern, err)
		}
		slices.Sort(files)
		for _, file := range files {
			if filepath.Base(file) == Kustomization {
				continue
			}
			text := Read(tb, "kubernetes", filepath.Base(file))
			found, err := documents(filepath.Base(file), text)
			if err != nil {
				tb.Fatal(err)
			}
			objects = append(objects, found...)
		}
	}
	return objects
}

// Kustomization is the one file of the manifests that is for kustomize and not for the API server.
const Kustomization = "kustomization.yaml"

func documents(file string, text []byte) ([]Object, error) {
	var objects []Object
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(document, &object.Object); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if object.GetKind() == "" || object.GetName() == "" {
			return nil, fmt.Errorf("%s: a document without kind or name", file)
		}
		objects = append(objects, Object{File: file, Text: document, Unstructured: object})
	}
	return objects, nil
}

// Decode turns an object into its type; a field that the type does not have ends the test.
func Decode[T any](tb testing.TB, object Object) *T {
	tb.Helper()
	typed := new(T)
	if err := yaml.UnmarshalStrict(object.Text, typed); err != nil {
		tb.Fatalf("%s, %s %s: %v", object.File, object.GetKind(), object.GetName(), err)
	}
	return typed
}
