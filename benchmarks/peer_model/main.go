// The model service of TARSy for benchmarks and tests: waits, then answers with text that ends in a score.
//
// With -investigates it carries out investigations: it calls the first tool that it is offered, and concludes after
// the result. It answers a conversation that holds the text of -fails with an error of the provider.
//
// It is built inside a checkout of TARSy, whose messages it imports; see docs/benchmarks.md.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"

	llmv1 "github.com/codeready-toolchain/tarsy/proto"
)

type answers = grpc.ServerStreamingServer[llmv1.GenerateResponse]

type model struct {
	llmv1.UnimplementedLLMServiceServer
	latency      time.Duration
	answer       string
	investigates bool
	fails        string
}

func (m *model) Generate(request *llmv1.GenerateRequest, stream answers) error {
	time.Sleep(m.latency)
	if m.fails != "" && holds(request, m.fails) {
		failure := &llmv1.ErrorInfo{Message: "the provider refuses", Code: "invalid_request"}
		return stream.Send(&llmv1.GenerateResponse{Content: &llmv1.GenerateResponse_Error{Error: failure}, IsFinal: true})
	}
	if m.investigates && len(request.Tools) > 0 && !hasResult(request) {
		call := &llmv1.ToolCallDelta{CallId: "call-1", Name: request.Tools[0].Name, Arguments: `{"name": "checkout-7"}`}
		content := &llmv1.GenerateResponse_ToolCall{ToolCall: call}
		if err := stream.Send(&llmv1.GenerateResponse{Content: content}); err != nil {
			return err
		}
	} else {
		content := &llmv1.GenerateResponse_Text{Text: &llmv1.TextDelta{Content: m.answer}}
		if err := stream.Send(&llmv1.GenerateResponse{Content: content}); err != nil {
			return err
		}
	}
	usage := &llmv1.UsageInfo{InputTokens: 30000, OutputTokens: 600, TotalTokens: 30600}
	return stream.Send(&llmv1.GenerateResponse{Content: &llmv1.GenerateResponse_Usage{Usage: usage}, IsFinal: true})
}

func holds(request *llmv1.GenerateRequest, text string) bool {
	for _, message := range request.Messages {
		if strings.Contains(message.Content, text) {
			return true
		}
	}
	return false
}

func hasResult(request *llmv1.GenerateRequest) bool {
	for _, message := range request.Messages {
		if message.Role == "tool" {
			return true
		}
	}
	return false
}

func main() {
	latency := flag.Duration("latency", 0, "wait before each answer")
	size := flag.Int("answer-bytes", 2500, "about the size of an answer")
	investigates := flag.Bool("investigates", false, "call a tool before the answer, where there are tools")
	fails := flag.String("fails", "", "answer conversations with this text with an error")
	flag.Parse()
	sentence := "The agent compared the pods before it concluded. "
	answer := strings.Repeat(sentence, 1+*size/len(sentence)) + "\n72"
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	llmv1.RegisterLLMServiceServer(server, &model{latency: *latency, answer: answer, investigates: *investigates, fails: *fails})
	fmt.Println(listener.Addr())
	log.Fatal(server.Serve(listener))
}
