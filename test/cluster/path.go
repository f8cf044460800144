package cluster

import "strings"

// SplitPath reads the path of a request to the API server: /api/v1 or /apis/<group>/<version>, then perhaps
// namespaces/<name>, then the words that it returns: the resource and, as far as they are there, the object's name and a
// subresource. The group is empty for the core. There are no words when the path is about no resource.
func SplitPath(path string) (group string, words []string) {
	words = strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(words) > 2 && words[0] == "api":
		words = words[2:]
	case len(words) > 3 && words[0] == "apis":
		group, words = words[1], words[3:]
	default:
		return "", nil
	}
	if len(words) > 2 && words[0] == "namespaces" {
		words = words[2:]
	}
	return group, words
}
