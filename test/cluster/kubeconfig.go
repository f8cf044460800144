package cluster

import (
	"context"
	"fmt"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Kubeconfig is the file with the admin's access.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, "admin.kubeconfig") }

// ServiceAccountConfig returns a client config with exactly the rights of an existing service account, without a
// rate limit. The token is good for a day.
func (c *Cluster) ServiceAccountConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	token, err := c.serviceAccountToken(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	config := c.Config()
	config.BearerToken = token
	config.UserAgent = "test-" + name
	return config, nil
}

// ServiceAccountKubeconfig writes a kubeconfig with exactly the rights of an existing service account and returns
// the file's name. Its default namespace is that of the account. The token is good for a day.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	token, err := c.serviceAccountToken(ctx, namespace, name)
	if err != nil {
		return "", err
	}
	file := filepath.Join(c.dir, namespace+"-"+name+".kubeconfig")
	return file, c.writeKubeconfig(file, token, namespace)
}

func (c *Cluster) serviceAccountToken(ctx context.Context, namespace, name string) (string, error) {
	const day = int64(24 * 60 * 60)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(day)}}
	answer, err := c.clientset.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("make a token of service account %s/%s: %w", namespace, name, err)
	}
	return answer.Status.Token, nil
}

func (c *Cluster) writeKubeconfig(file, token, namespace string) error {
	const name = "test"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: c.admin.Host, CertificateAuthorityData: c.pki.caCert}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: namespace}
	config.CurrentContext = name
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}
